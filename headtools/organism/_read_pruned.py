"""Read a pruned model from the files that ``save`` wrote, and compare it with the model that was saved.

transformers alone cannot read most pruned models, since their layers have shapes that no configuration states. But only
transformers can read the weights, since it renames, splits and joins them when it writes them. So ``read`` lets
``from_pretrained`` build a subclass of the model that prunes its heads as soon as it is built, before weights are
loaded.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._attention import LayerConfig
from headtools.heads.prune import replay
from headtools.organism._pruned_config import apply_settings

PRUNED_HEADS = "pruned_heads.json"  # the file with the list of pruned heads

_ALIGNMENT = 64  # bytes; torch's own memory starts at a multiple of this


def read(architecture: Any, config: Any, folder: Path, dtype: torch.dtype, heads: list, ungrouped: list) -> Any:
    """Return the model of a folder, pruned while it is built and then filled with its weights, in eval mode.

    Raises ``ValueError`` where weights do not fit.
    """
    if not hasattr(architecture, "_from_config"):  # AutoModel
        architecture = architecture._model_mapping[type(config)]

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        architecture.__init__(self, *args, **kwargs)
        replay(self, heads, ungrouped)

    names = {"__init__": build, "__module__": architecture.__module__, "__qualname__": architecture.__qualname__}
    model, report = type(architecture.__name__, (architecture,), names).from_pretrained(
        folder, config=config, dtype=dtype, use_safetensors=True, attn_implementation="eager", output_loading_info=True
    )
    model.__class__ = architecture
    not_stored = [*(model._keys_to_ignore_on_save or ()), *(model._keys_to_ignore_on_load_missing or ())]
    missing = [name for name in report["missing_keys"] if not any(re.search(pattern, name) for pattern in not_stored)]
    if mismatched := [*missing, *report["unexpected_keys"], *map(str, report["mismatched_keys"])]:
        raise ValueError(f"weights do not fit, such as {sorted(mismatched)[0]!r}")
    for weight in model.parameters():
        # A weight that is mapped from the file may be unaligned. torch then sums in another order than in the model
        # that was saved, and the last digits of outputs differ.
        if weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' messages about a folder that is only opened to check whether it can be."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def widest_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype that holds all weights of a model exactly: float32 for one in bfloat16 and float32."""
    dtypes = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    return functools.reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def first_difference(model: nn.Module, other: nn.Module) -> str | None:
    """Return the first weight or buffer in which two models differ bitwise, and how, or None.

    >>> one, two = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> first_difference(one, one) is None, first_difference(one, two)
    (True, 'weight differs')
    """
    first, second = model.state_dict(), other.state_dict()
    for name in dict.fromkeys([*first, *second]):
        if name not in first or name not in second:
            return f"{name} is {'missing' if name in first else 'unexpected'}"
        a, b = first[name], second[name]
        if a.shape != b.shape:
            return f"{name} has shape {tuple(b.shape)} instead of {tuple(a.shape)}"
        if not _equal(a.detach().cpu(), b.detach().cpu()):
            return f"{name} differs"
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def same_build(model: nn.Module, other: nn.Module) -> str | None:
    """Return the first attribute in which the modules of two models differ, so that they may compute differently.

    Equal weights do not suffice. Compared are the numbers and strings that a module keeps as attributes (head counts,
    scales, windows), its buffers (rotary frequencies), and the settings of a pruned layer that override its
    configuration.
    """
    for first, second in zip_longest(model.named_modules(), other.named_modules(), fillvalue=("nothing", None)):
        (name, a), (_, b) = first, second
        if type(a) is not type(b):
            return f"{name} is {type(b).__name__} instead of {type(a).__name__}"
        attributes, other_attributes = _attributes(a), _attributes(b)
        config = vars(a).get("config")
        overrides = getattr(config, "own", {}) if isinstance(config, LayerConfig) else {}
        attributes |= {f"config.{key}": value for key, value in overrides.items()}
        other_attributes |= {f"config.{key}": getattr(b.config, key, None) for key in overrides}
        for key in sorted(attributes.keys() | other_attributes.keys()):
            if attributes.get(key) != other_attributes.get(key):
                return f"{name}.{key} is {other_attributes.get(key)!r} instead of {attributes.get(key)!r}"
        for key, buffer in a.named_buffers(recurse=False):
            other_buffer = getattr(b, key, None)
            if other_buffer is None or other_buffer.shape != buffer.shape or not _equal(buffer, other_buffer):
                return f"{name}.{key} differs"
    return None


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the numbers and strings that a module keeps under public names."""
    return {key: value for key, value in vars(module).items() if not key.startswith("_") and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def read_pruned(architecture: type, config: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Return the model of a folder that ``save`` wrote, in eval mode; ``ValueError`` where its parts do not fit."""
    try:
        metadata = metadata_of(folder)
        # The settings from before pruning: ``read`` builds the full model and then prunes it.
        apply_settings(config, metadata["settings"])
        return read(architecture, config, folder, dtype, metadata["heads"], metadata["ungrouped"])
    except Exception as error:  # a damaged or missing file can lead to any error
        raise ValueError(f"{folder}: not a pruned model that can be read ({shorten(error)}); write it again") from error


def metadata_of(folder: Path) -> dict:
    """Return the metadata that ``save`` wrote beside the weights; earlier versions wrote only the list of heads."""
    metadata = json.loads((folder / PRUNED_HEADS).read_text(encoding="utf-8"))
    if isinstance(metadata, list):
        reason = "it was written before headtools stated the sizes in config.json"
        metadata = {"heads": metadata, "opens_without_headtools": not metadata, "reason": reason if metadata else ""}
    return {"ungrouped": [], "settings": {}, **metadata, "heads": [tuple(head) for head in metadata["heads"]]}


def shorten(error: Exception) -> str:
    """Return the message of an error in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " ..."
