"""Scores on disk, with what they were made from: one safetensors file, whose header holds the rest as JSON.

``save_scores`` and ``load_scores`` keep scores; what they were made from is named by its content (a fingerprint).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headtools._engine.store import fingerprint, read_tensors, write_tensors
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites

PARTS = ("values", "low", "high")


def save_scores(scores: HeadScores, path: str | Path, made_from: Mapping[str, Any] | None = None) -> Path:
    """Write scores to a file, whole or not at all, with what they were made from; return its path.

    ``path`` ends in .safetensors; its folder is made where it is missing, and a file that is there is replaced.
    ``made_from`` names whatever determined the scores: ``{"model": model, "batches": batches, "over": "example"}``.
    Numbers, short texts and lists of them are kept as they are; a model, batches or sentences by their fingerprint. The
    versions of Python, torch, transformers and headtools are added.

    Raises ``ValueError`` for another ending and ``TypeError`` for what has no fingerprint, such as a function: give its
    name.

    >>> import tempfile
    >>> scores = HeadScores({("encoder", 0): torch.tensor([0.25, 0.75])}, "share")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_scores(scores, folder + "/share.safetensors", made_from={"limit": 100})
    ...     load_scores(path), origin(path)["made_from"]
    (<HeadScores 'share': 2 heads, highest encoder 0.1 0.75, encoder 0.0 0.25>, {'limit': 100})
    """
    import transformers

    from headtools import __version__

    keys = list(scores.values)
    tensors = {
        f"{part}|{place}": getattr(scores, part)[key]
        for part in PARTS
        if getattr(scores, part) is not None
        for place, key in enumerate(keys)
        if key in getattr(scores, part)
    }
    versions = {"headtools": __version__, "transformers": transformers.__version__, "torch": torch.__version__,
                "python": platform.python_version()}  # fmt: skip
    told = {"scores": scores.name, "sites": [list(key) for key in keys], "made_from": _described(made_from or {}),
            "notes": _notes(scores.notes), "versions": versions}  # fmt: skip
    return write_tensors(path, tensors, told)


def load_scores(
    path: str | Path, model: nn.Module | None = None, made_from: Mapping[str, Any] | None = None
) -> HeadScores:
    """Return the scores that ``save_scores`` wrote.

    With ``model`` they must be scores of its heads: each site is there and has as many heads. With ``made_from`` each
    entry must be what the scores were made from, a model or batches by their content; entries left out are not asked.

    Raises ``FileNotFoundError`` where there is no file, and ``ValueError`` for one that is truncated, changed, no score
    file, of other heads or made from something else.
    """
    tensors, told = read_tensors(path)
    try:
        keys = [tuple(key) for key in told["sites"]]
        if not all(isinstance(key[-1], int) and all(isinstance(name, str) for name in key[:-1]) for key in keys):
            raise TypeError("a site is its names and its layer")
        parts = {part: {key: tensors[f"{part}|{i}"] for i, key in enumerate(keys) if f"{part}|{i}" in tensors}
                 for part in PARTS}  # fmt: skip
        if len(set(keys)) != len(keys) or parts["values"].keys() != set(keys):
            raise ValueError("sites without values")
        notes = _notes(told.get("notes", {}))
        scores = HeadScores(parts["values"], str(told["scores"]), parts["low"] or None, parts["high"] or None, notes)
        kept = dict(told["made_from"])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no scores of heads: write them with save_scores ({error})") from error
    if model is not None:
        _refuse_other_heads(scores, model, path)
    wanted = _described(made_from or {})
    other = [
        f"{name} {kept.get(name)!r}, not {value!r}"
        for name, value in wanted.items()
        if name not in kept or kept[name] != value
    ]
    if other:
        raise ValueError(f"{path} was made from {'; '.join(other)}: compute the scores again")
    return scores


def origin(path: str | Path) -> dict[str, Any]:
    """Return what stands beside the tensors of a file: for scores their name, ``made_from`` and ``versions``.

    Raises as ``load_scores`` does for files that are not there, truncated or changed.
    """
    return read_tensors(path)[1]


def _notes(notes: Mapping[str, Any]) -> dict[str, float | str]:
    """Return notes as they are stored: words as they are, all else as numbers."""
    return {name: note if isinstance(note, str) else float(note) for name, note in notes.items()}


def _described(made_from: Mapping[str, Any]) -> dict[str, Any]:
    """Return entries as JSON holds them: short ones as they are, all others by type and fingerprint."""
    return {str(name): value if (value := _short(thing)) is not ... else f"{type(thing).__name__} {fingerprint(thing)}"
            for name, thing in made_from.items()}  # fmt: skip


def _short(thing: Any) -> Any:
    """Return what can stand in the header as it is, tuples as lists; ... for everything else."""
    if isinstance(thing, list | tuple) and len(thing) <= 100:
        parts = [_short(part) for part in thing]
        return ... if any(part is ... for part in parts) else parts
    plain = thing is None or isinstance(thing, bool | int) or (isinstance(thing, float) and math.isfinite(thing))
    return thing if plain or (isinstance(thing, str) and len(thing) <= 200) else ...


def _refuse_other_heads(scores: HeadScores, model: nn.Module, path: str | Path) -> None:
    found = {site.key: site.heads for site in sites(model)}
    wrong = [f"{' '.join(map(str, key))} with {len(value)} heads" for key, value in scores.values.items()
             if found.get(key) != len(value)]  # fmt: skip
    if wrong:
        raise ValueError(f"{path} holds scores of other heads than those of {type(model).__name__}: {', '.join(wrong)}")
