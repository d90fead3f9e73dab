"""A pruned model in a folder: written with the list of what was cut, and read back by ``headtools.load``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from headtools._engine.store import atomic_folder, explain_os_error
from headtools.heads._checks import check_not_offloaded
from headtools.heads._weights import check_plain_model
from headtools.heads.prune import pruned, ungrouped
from headtools.organism import _reopened as reopened
from headtools.organism._checksums import write_checksums
from headtools.organism._plain_config import smaller_config


def save(model: Any, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write a pruned transformers model, with its tokenizer, to a new folder, whole or not at all; ``load`` reads it.

    Where all layers were cut alike and the model's configuration has settings for that (Llama, Mistral, Qwen and
    others that tell the width of a head apart from their number), ``config.json`` tells the new sizes and
    ``from_pretrained`` opens the folder without headtools. Elsewhere it refuses the folder, since the configuration can
    only tell one number of heads. ``opens_without_headtools(folder)`` says which it is, and why.

    The list of cut heads lies beside the weights (``pruned_heads.json``), and the checksums of all files
    (``checksums.json``), by which ``load`` knows a changed one. Before the folder gets its name it is opened again and
    every weight compared with ``model``'s, which takes memory for a second copy.

    Returns the folder. Raises ``FileExistsError`` where something is there already, ``OSError`` where nothing can be
    written, ``TypeError`` for a model that is not one of transformers', and ``ValueError``, naming a weight, where what
    was written would not give the model back, or where weights are offloaded.

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
    model = getattr(model, "_orig_mod", model)  # of a compiled one
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        kind = type(model).__name__
        raise TypeError(f"{kind} is a wrapper around a transformers model: write save(model.module, folder)")
    if not hasattr(model, "save_pretrained"):
        raise TypeError(
            f"{type(model).__name__} is no transformers model: keep its state_dict and pruned(model) yourself"
        )
    check_plain_model(model, "save")
    check_not_offloaded(model, "save")
    with atomic_folder(folder) as part:
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        with _no_bar():
            _write(model, part)
        write_checksums(part, sorted(path.name for path in part.iterdir()))
    return folder


def _write(model: Any, folder: Path) -> None:
    """Write configuration and weights in the first of three ways by which the model comes back.

    Weights have the names of the Hub, which transformers makes by renaming, splitting and joining, unless that does not
    lead back to this model, whose sizes may no longer be those of its configuration: then they have the model's own.
    """
    config, before, why = smaller_config(model)
    if config is not None:
        why = _try(model, folder, config, before)
        if why is None:
            return
    for original_names in (True, False):
        odd = _try(model, folder, None, {}, why, original_names)
        if odd is None:
            return
    raise ValueError(
        f"{type(model).__name__} cannot be read back from what transformers writes of it ({odd}), so nothing was "
        "written: keep model.state_dict() and pruned(model) yourself, and read them with replay(fresh, heads) and "
        "fresh.load_state_dict(weights)"
    )


def _try(
    model: Any, folder: Path, config: Any, before: dict, why: str | None = None, original_names: bool = True
) -> str | None:
    """Write a model, with another configuration than its own if one is given, and return why it does not come back."""
    from headtools.organism import load

    try:
        model.save_pretrained(folder, max_shard_size="1TB", save_original_format=original_names)  # one file
        if config is not None:
            config.architectures, config.dtype = model.config.architectures, model.config.dtype  # as just written
            config.save_pretrained(folder)
        _describe(model, folder, before, why)
        dtype = reopened.widest(model)
        with reopened.quiet():
            again = load._smaller(folder, dtype)
            odd = reopened.first_difference(model, again)
            if config is None or odd is not None:
                return odd
            plain = load._model(str(folder), dtype)
        return reopened.first_difference(model, plain) or reopened.same_build(again, plain)
    except Exception as error:  # whatever transformers says of sizes that it does not expect
        if explain_os_error(error, folder) is not None:
            raise
        return reopened.short(error)


def opens_without_headtools(folder: str | Path) -> tuple[bool, str]:
    """Tell of a folder that ``save`` wrote whether transformers' own ``from_pretrained`` opens it, and why not.

    >>> import tempfile
    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> ht.prune(model, {("encoder", 2): [0, 5]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     opens_without_headtools(save(model, Path(place) / "smaller"))
    (False, 'its layers have different numbers of heads, and config.json can tell one only')
    """
    metadata = reopened.metadata_of(Path(folder))
    return metadata["opens_without_headtools"], metadata["reason"]


def how_to_open(folder: str | Path) -> str:
    """Say what opens a folder that ``save`` wrote, for people.

    >>> import tempfile
    >>> import headtools as ht
    >>> with tempfile.TemporaryDirectory() as place:
    ...     how_to_open(save(ht.load()[0], Path(place) / "same")).replace(place, "...").replace(chr(92), "/")
    "open it with headtools.load('.../same'), or with from_pretrained, without headtools"
    """
    opens, why = opens_without_headtools(folder)
    line = f"open it with headtools.load({str(folder)!r})"
    return line + (", or with from_pretrained, without headtools" if opens else f"; transformers alone cannot: {why}")


def _describe(model: Any, folder: Path, settings: dict, why: str | None) -> None:
    """Write what was cut, and the settings that stood in the configuration before."""
    metadata = {
        "heads": [list(head) for head in pruned(model)], "ungrouped": [list(key) for key in ungrouped(model)],
        "opens_without_headtools": why is None, "reason": why or "", "settings": settings,
    }  # fmt: skip
    (folder / reopened.CUT).write_text(json.dumps(metadata), encoding="utf-8")
