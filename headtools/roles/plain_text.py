"""Plain text for language models: sentences as they were written, and batches, one text a row or packed in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headtools.roles.corpus import ENGLISH, corpus, in_split
from headtools.roles.library_texts import LIBRARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE = -100
_COMMENT = "# text = "


def natural_text(name: str | Path = "english", split: str = "test", limit: int | None = None) -> list[str]:
    """Return the sentences of ``corpus(name, split, limit)`` as they were written, from a treebank's ``# text`` lines.

    "documents" and "code" are texts already.

    (A language model has not read ``the harbour .`` with a space before the full stop, and its loss says so.) Raises
    ValueError for a treebank without such lines, and for an unknown split.

    >>> natural_text("english", limit=1)
    ['The last train to Leeds had already left when we arrived at the station.']
    """
    if name in LIBRARY:
        return corpus(name, split, limit)
    path = ENGLISH if name == "english" else Path(name)
    lines = path.read_text(encoding="utf-8").split("\n")
    texts = [line.removeprefix(_COMMENT) for line in lines if line.startswith(_COMMENT)]
    if not texts:
        raise ValueError(f'{path} has no "{_COMMENT}" lines; got a file without its texts')
    if name == "english":
        texts = in_split(texts, split)
    return texts[:limit]


class TextBatches(list):
    """Batches, and what became of the texts: how many rows and tokens there are, and what was left out.

    rows      texts or chunks, in all batches together
    tokens    tokens that are no padding
    padding   the fraction of the batches' positions that are padding
    skipped   texts of fewer than two tokens (nothing to predict) or, in packed chunks, tokens of the last, short one
    """

    def __init__(self, batches: Iterable[dict[str, Tensor]], skipped: int) -> None:
        super().__init__(batches)
        masks = [batch["attention_mask"] for batch in self]
        self.rows = sum(len(mask) for mask in masks)
        self.tokens = sum(int(mask.sum()) for mask in masks)
        self.padding = 1 - self.tokens / sum(mask.numel() for mask in masks)
        self.skipped = skipped

    def __repr__(self) -> str:
        return (
            f"<TextBatches: {len(self)} batches, {self.rows} rows, {self.tokens} tokens, {self.padding:.0%} padding, "
            f"{self.skipped} skipped>"
        )


def text_batches(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    length: int | None = None,
    batch_size: int = 8,
    separator: str = "\n\n",
    start: bool = False,
) -> TextBatches:
    """Return texts as batches for a causal language model: input_ids, attention_mask, labels (-100 at padding).

    Without ``length`` a row is a text, sorted by length and padded on the right; texts of fewer than two tokens are
    counted as skipped. With it the texts, joined by ``separator``, are cut into chunks of ``length`` tokens; what is
    left at the end is skipped. With ``start`` each row begins with the tokenizer's start token, which counts in
    ``length``; no other special token is added. Raises TypeError for a single string and for texts that are not
    strings, ValueError for no row and for a tokenizer without a start token.

    >>> from headtools.organism.load import load
    >>> text_batches(load()[1], ["the dog slept .", "it slept .", "it"])
    <TextBatches: 1 batches, 2 rows, 7 tokens, 12% padding, 1 skipped>
    """
    if isinstance(texts, str):
        raise TypeError(f"got one string; expected a list of them: write [{texts[:40]!r}]")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"texts[{i}] is a {type(text).__name__}; expected strings: of a treebank write "
                'natural_text("english"), of a file corpus("file.txt")'
            )
    if not texts:
        raise ValueError('got no texts; write text_batches(tokenizer, corpus("file.txt"))')
    if length is not None and length < 2:
        raise ValueError(f"got length={length}; expected 2 tokens or more, of which one is predicted")
    if start and tokenizer.bos_token_id is None:
        raise ValueError("this tokenizer has no start token: leave start=True out, or set tokenizer.bos_token")
    options = {"add_special_tokens": False, "verbose": False}
    first = [tokenizer.bos_token_id] if start else []
    if length is not None:
        ids, new = tokenizer(separator.join(texts), **options).input_ids, length - len(first)
        # The last chunk is left out if it is short: every row has the same length.
        rows = [first + ids[i : i + new] for i in range(0, len(ids) - new + 1, new)]
        skipped = len(ids) - new * len(rows)
    else:
        tokenized = [first + ids for ids in tokenizer(texts, **options).input_ids]
        rows = sorted((row for row in tokenized if len(row) >= 2), key=len)
        skipped = len(tokenized) - len(rows)
    if not rows:
        what = f"a chunk of {length} tokens" if length else "a row of two tokens"
        raise ValueError(f"got {len(texts)} texts, none of which gives {what}: pass more text")
    return TextBatches((_batch(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)), skipped)


def _batch(rows: Sequence[list[int]]) -> dict[str, Tensor]:
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)  # masked, so that any token will do
    mask = (torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORE)}
