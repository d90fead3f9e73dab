"""A pruned model read from its files, and whether it is the one that was written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._layer_config import LayerConfig
from headtools.heads.prune import replay_before_loading
from headtools.organism._plain_config import put

CUT = "pruned_heads.json"

_ALIGNED = 64  # bytes; torch's own memory begins at a multiple of that


def read(architecture: Any, config: Any, folder: Path, dtype: torch.dtype, heads: list, copied: list) -> Any:
    """Return the model of a folder, cut as it was made and then filled with its weights, in eval mode.

    transformers itself reads them, since it alone knows what it renamed, split and joined when it wrote them. It does
    so for a class that cuts its heads as soon as it is built. Raises ``ValueError`` where weights do not fit.
    """
    if not hasattr(architecture, "_from_config"):  # AutoModel
        architecture = architecture._model_mapping[type(config)]

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        architecture.__init__(self, *args, **kwargs)
        replay_before_loading(self, heads, copied)

    names = {"__init__": build, "__module__": architecture.__module__, "__qualname__": architecture.__qualname__}
    model, report = type(architecture.__name__, (architecture,), names).from_pretrained(
        folder, config=config, dtype=dtype, use_safetensors=True, attn_implementation="eager", output_loading_info=True
    )
    model.__class__ = architecture
    made = [*(model._keys_to_ignore_on_save or ()), *(model._keys_to_ignore_on_load_missing or ())]
    lost = [name for name in report["missing_keys"] if not any(re.search(pattern, name) for pattern in made)]
    if odd := [*lost, *report["unexpected_keys"], *map(str, report["mismatched_keys"])]:
        raise ValueError(f"weights do not fit, such as {sorted(odd)[0]!r}")
    for weight in model.parameters():
        if weight.data_ptr() % _ALIGNED:  # as it lay in the file: torch would add in another order than with the model
            weight.data = weight.data.clone()  # that was written, and give other last digits
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from reporting on a folder that is only opened to see whether it can be."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def widest(model: nn.Module) -> torch.dtype:
    """Return the type that holds every weight of a model as it is: float32 for one in bfloat16 and float32."""
    types = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    found = types.pop() if types else torch.float32
    for other in types:
        found = torch.promote_types(found, other)
    return found


def first_difference(model: nn.Module, other: nn.Module) -> str | None:
    """Return what the first weight or buffer is that two models do not share bit for bit, and how it differs.

    >>> one, two = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> first_difference(one, one) is None, first_difference(one, two)
    (True, 'weight differs')
    """
    mine, others = model.state_dict(), other.state_dict()
    for name in dict.fromkeys([*mine, *others]):
        if name not in mine or name not in others:
            return f"{name} is {'not there' if name in mine else 'one too many'}"
        a, b = mine[name], others[name]
        if a.shape != b.shape:
            return f"{name} has shape {tuple(b.shape)} instead of {tuple(a.shape)}"
        if not _equal(a.detach().cpu(), b.detach().cpu()):
            return f"{name} differs"
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def same_build(model: nn.Module, other: nn.Module) -> str | None:
    """Return the first number or word in which the modules of two models differ, so that they may compute otherwise.

    Compared are those that a module keeps as attributes (head counts, scales, windows) and its buffers (rotary
    frequencies), and, of a pruned layer's configuration, what is its own.
    """
    for one, two in zip_longest(model.named_modules(), other.named_modules(), fillvalue=("nothing", None)):
        (name, a), (_, b) = one, two
        if type(a) is not type(b):
            return f"{name} is {type(b).__name__} instead of {type(a).__name__}"
        mine, others = _attributes(a), _attributes(b)
        own = getattr(vars(a).get("config"), "own", {}) if isinstance(vars(a).get("config"), LayerConfig) else {}
        mine |= {f"config.{key}": value for key, value in own.items()}
        others |= {f"config.{key}": getattr(b.config, key, None) for key in own}
        for key in sorted(mine.keys() | others.keys()):
            if mine.get(key) != others.get(key):
                return f"{name}.{key} is {others.get(key)!r} instead of {mine.get(key)!r}"
        for key, buffer in a.named_buffers(recurse=False):
            twin = getattr(b, key, None)
            if twin is None or twin.shape != buffer.shape or not _equal(buffer, twin):
                return f"{name}.{key} differs"
    return None


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the numbers and words that a module keeps under public names."""
    return {key: value for key, value in vars(module).items() if not key.startswith("_") and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def read_pruned(architecture: type, config: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Return the model of a folder that ``save`` wrote, in eval mode; ``ValueError`` where its parts do not fit."""
    try:
        metadata = metadata_of(folder)
        put(config, metadata["settings"])
        return read(architecture, config, folder, dtype, metadata["heads"], metadata["ungrouped"])
    except Exception as error:
        # whatever a damaged file leads to; a file that is not there among it
        raise ValueError(f"{folder}: not a pruned model that can be read ({short(error)}); write it again") from error


def metadata_of(folder: Path) -> dict:
    """Return what ``save`` wrote beside the weights; folders of earlier versions have the bare list of heads."""
    metadata = json.loads((folder / CUT).read_text(encoding="utf-8"))
    if isinstance(metadata, list):
        why = "it was written before headtools told the sizes in config.json"
        metadata = {"heads": metadata, "opens_without_headtools": not metadata, "reason": why if metadata else ""}
    return {"ungrouped": [], "settings": {}, **metadata, "heads": [tuple(head) for head in metadata["heads"]]}


def short(error: Exception) -> str:
    """Return what an error says, in one line of at most 300 letters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " ..."
