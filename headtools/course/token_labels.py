"""Tokens as people read them: no Ġ, ▁ or ##, no half of a character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VISIBLE = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "␍"})
CONTINUED = "·"  # before a piece that continues a word
PIECES = "##"  # what WordPiece writes there


def token_labels(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int] | torch.Tensor) -> list[str]:
    """Return a label for each token id: its text, with a dot before a piece that continues a word.

    Ġ, ▁ and ## are not shown. Line ends show as ↵, a token that is only a space as ␣. Where a character of several
    bytes is split over tokens, the first of them shows it and the others the dot alone. Raises TypeError for other ids.

    >>> from headtools.organism.load import load
    >>> tokenizer = load()[1]
    >>> token_labels(tokenizer, tokenizer("the dog slept .").input_ids)
    ['the', 'dog', 'slept', '.', '</s>']
    """
    ids = ids.tolist() if isinstance(ids, torch.Tensor) else list(ids)
    if not all(isinstance(i, int) for i in ids):
        raise TypeError(f"got ids like {ids[:1]}; expected the ids of one text: token_labels(tokenizer, ids[0])")
    pieces = tokenizer.convert_ids_to_tokens(ids)
    special = set(tokenizer.all_special_ids)
    marked = _marked(tokenizer)
    labels, preceding = [], ""
    for position, (i, piece) in enumerate(zip(ids, pieces, strict=True)):
        if i in special or marked is None:
            labels.append(piece.translate(VISIBLE))
            preceding = ""
            continue
        starts = not piece.startswith(PIECES) if marked == PIECES else piece.startswith(marked)
        text = piece.removeprefix(PIECES) if marked == PIECES else tokenizer.decode([i]).lstrip(" ")
        if marked != PIECES and "\ufffd" in text:  # a part of a character: show it where it begins
            text, preceding = _character(tokenizer, ids, position, preceding)
        else:
            preceding = ""
        if not text:
            labels.append("␣" if starts and not piece.strip(marked) else CONTINUED)
            continue
        spaced = bool(labels) and (labels[-1] == "␣" or labels[-1].endswith((" ", "↵", "⇥")))
        first = position == 0 or starts or spaced or not text[0].isalnum()
        labels.append((text if first else CONTINUED + text).translate(VISIBLE))
    return labels


def _marked(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return how a tokenizer marks where words begin or go on: Ġ, ▁, ##, or None."""
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("a a aaaaaaaaaaaaaaaa", add_special_tokens=False).input_ids)
    for marker in ("Ġ", "▁", PIECES):
        if any(piece.startswith(marker) for piece in pieces):
            return marker
    return None


def _character(tokenizer: PreTrainedTokenizerBase, ids: list[int], position: int, preceding: str) -> tuple[str, str]:
    """Return the character that begins with this token, and what is shown of it so far."""
    if preceding:
        return "", preceding[1:]
    for end in range(position + 2, min(position + 5, len(ids) + 1)):
        text = tokenizer.decode(ids[position:end]).lstrip(" ")
        if "\ufffd" not in text:
            return text[:1], " " * (end - position - 1)
    return "�", ""
