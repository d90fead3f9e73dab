"""Scores on disk, with what they were made from: one safetensors file, whose header holds the metadata as JSON.

Models, batches and sentences are recorded by a fingerprint of their content, so that ``load_scores`` can tell whether
scores belong to the model at hand.
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

_TENSORS = ("values", "low", "high")  # the tensors of a ``HeadScores``, each stored as "values|0" for its first site


def save_scores(scores: HeadScores, path: str | Path, made_from: Mapping[str, Any] | None = None) -> Path:
    """Write scores and what they were made from to a file, by an atomic write; return its path.

    ``path`` ends in .safetensors; its folder is created where it is missing, and an existing file is replaced.
    ``made_from`` names whatever determined the scores: ``{"model": model, "batches": batches, "per": "example"}``.
    Numbers, short strings and lists of them are stored as they are; a model, batches or sentences by their fingerprint.
    The versions of Python, torch, transformers and headtools are added.

    Raises ``ValueError`` for another extension and ``TypeError`` for what has no fingerprint, such as a function: give
    its name.

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
        f"{name}|{index}": getattr(scores, name)[key]
        for name in _TENSORS
        if getattr(scores, name) is not None
        for index, key in enumerate(keys)
        if key in getattr(scores, name)
    }
    versions = {
        "headtools": __version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    metadata = {
        "scores": scores.name,
        "sites": [list(key) for key in keys],
        "made_from": _described(made_from or {}),
        "notes": _notes(scores.notes),
        "versions": versions,
    }
    return write_tensors(path, tensors, metadata)


def load_scores(
    path: str | Path, model: nn.Module | None = None, made_from: Mapping[str, Any] | None = None
) -> HeadScores:
    """Return the scores that ``save_scores`` wrote.

    With ``model`` they must be scores of its heads: each site exists and has as many heads. With ``made_from`` each
    entry must be what the scores were made from, a model or batches by their content; entries left out are not checked.

    Raises ``FileNotFoundError`` where there is no file, and ``ValueError`` for one that is truncated, changed, not a
    file of scores, of other heads or made from something else.
    """
    tensors, metadata = read_tensors(path)
    try:
        keys = [tuple(key) for key in metadata["sites"]]
        if not all(isinstance(key[-1], int) and all(isinstance(name, str) for name in key[:-1]) for key in keys):
            raise TypeError("a site is its names and its layer")
        by_name = {
            name: {key: tensors[f"{name}|{i}"] for i, key in enumerate(keys) if f"{name}|{i}" in tensors}
            for name in _TENSORS
        }
        if len(set(keys)) != len(keys) or by_name["values"].keys() != set(keys):
            raise ValueError("sites without values")
        notes = _notes(metadata.get("notes", {}))
        scores = HeadScores(
            by_name["values"], str(metadata["scores"]), by_name["low"] or None, by_name["high"] or None, notes
        )
        recorded = dict(metadata["made_from"])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no scores of heads: write them with save_scores ({error})") from error
    if model is not None:
        _check_same_heads(scores, model, path)
    differences = [
        f"{name} {recorded.get(name)!r}, not {value!r}"
        for name, value in _described(made_from or {}).items()
        if name not in recorded or recorded[name] != value
    ]
    if differences:
        raise ValueError(f"{path} was made from {'; '.join(differences)}: compute the scores again")
    return scores


def origin(path: str | Path) -> dict[str, Any]:
    """Return the metadata of a file: for scores their name, ``made_from`` and ``versions``.

    Raises as ``load_scores`` does for files that are missing, truncated or changed.
    """
    return read_tensors(path)[1]


def _notes(notes: Mapping[str, Any]) -> dict[str, float | str]:
    """Return notes as they are stored: strings as they are, all else as numbers."""
    return {name: note if isinstance(note, str) else float(note) for name, note in notes.items()}


def _described(made_from: Mapping[str, Any]) -> dict[str, Any]:
    """Return entries as JSON holds them: short ones as they are, all others by type and fingerprint."""
    entries = {}
    for name, value in made_from.items():
        short = _as_json(value)
        entries[str(name)] = f"{type(value).__name__} {fingerprint(value)}" if short is ... else short
    return entries


def _as_json(value: Any) -> Any:
    """Return what can be in the header as it is, tuples as lists; ... for everything else (None is a value)."""
    if isinstance(value, list | tuple) and len(value) <= 100:
        items = [_as_json(item) for item in value]
        return ... if any(item is ... for item in items) else items
    plain = value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if plain or (isinstance(value, str) and len(value) <= 200) else ...


def _check_same_heads(scores: HeadScores, model: nn.Module, path: str | Path) -> None:
    n_heads = {site.key: site.heads for site in sites(model)}
    others = [
        f"{' '.join(map(str, key))} with {len(value)} heads"
        for key, value in scores.values.items()
        if n_heads.get(key) != len(value)
    ]
    if others:
        raise ValueError(
            f"{path} holds scores of other heads than those of {type(model).__name__}: {', '.join(others)}"
        )
