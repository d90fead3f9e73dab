"""A pruned model in a folder: written with the list of what was cut, and read back by ``headtools.load``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from headtools.heads.prune import pruned, replay
from headtools.heads.weights import refuse_wrapped_model
from headtools.heads.whole import written_folder
from headtools.organism.publish import write_checksums

CUT = "pruned_heads.json"
WEIGHTS = "model.safetensors"


def save(model: Any, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write a pruned transformers model, with its tokenizer, to a new folder, whole or not at all; ``load`` reads it.

    ``save_pretrained`` alone writes weights that ``from_pretrained`` refuses, since the configuration still tells the
    old number of heads. Here the list of cut heads lies beside them (``pruned_heads.json``), and the checksums of all
    files (``checksums.json``), by which ``load`` knows a changed one.

    Returns the folder. Raises ``FileExistsError`` where something is there already, ``OSError`` where nothing can be
    written, and ``TypeError`` for a model that is not one of transformers'.

    >>> import tempfile
    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> ht.prune(model, {("encoder", 2): [0, 5]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     again, _ = ht.load(save(model, Path(place) / "smaller", tokenizer))
    >>> ht.sites(again)["encoder", 2].heads
    6
    """
    from headtools.organism.load import _no_bar  # here, since load reads what this module writes

    folder = Path(folder)
    if not hasattr(model, "save_pretrained"):
        raise TypeError(
            f"{type(model).__name__} is no transformers model: keep its state_dict and pruned(model) yourself"
        )
    refuse_wrapped_model(model, "save")
    with written_folder(folder) as part:
        with _no_bar():
            model.save_pretrained(part, max_shard_size="1TB")  # one file, whatever its size
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        (part / CUT).write_text(json.dumps([list(head) for head in pruned(model)]), encoding="utf-8")
        write_checksums(part, sorted(path.name for path in part.iterdir()))
    return folder


def read(architecture: type, config: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Return the model of a folder that ``save`` wrote, in eval mode; ``ValueError`` where its parts do not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        heads = [tuple(head) for head in json.loads((folder / CUT).read_text(encoding="utf-8"))]
        model = architecture._from_config(config, dtype=dtype, attn_implementation="eager")
        replay(model, heads)
        lacking, unknown = load_model(model, folder / WEIGHTS, strict=False)
    except (AttributeError, ArithmeticError, KeyError, IndexError, OSError, RuntimeError, SafetensorError, TypeError,
            ValueError) as error:  # fmt: skip
        raise ValueError(f"{folder}: not a pruned model that can be read ({error}); write it again") from error
    made = [*(model._keys_to_ignore_on_save or ()), *(model._keys_to_ignore_on_load_missing or ())]
    lost = [name for name in lacking if not any(re.search(pattern, name) for pattern in made)]
    if lost or unknown:
        raise ValueError(f"{folder}: weights do not fit, such as {[*lost, *unknown][0]!r}; write the folder again")
    return model.eval()
