"""Save a pruned model to a folder, with the list of pruned heads, so that ``headtools.load`` can read it.

Requirements: a folder that exists is complete (it is written under another name and then renamed), and what was written
is read back and compared with the model before the folder gets its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from headtools._engine.store import atomic_folder, explain_os_error
from headtools.heads._checks import check_not_offloaded, check_plain_weights
from headtools.heads.prune import pruned, ungrouped
from headtools.organism import _read_pruned as reader
from headtools.organism._checksums import write_checksums
from headtools.organism._pruned_config import pruned_config
from headtools.organism.load import load_model, load_pruned, no_progress_bar


def save(model: Any, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write a pruned transformers model, with its tokenizer, atomically to a new folder, which ``load`` reads.

    Where all layers were pruned to the same sizes and the model's configuration has settings for them (Llama, Mistral,
    Qwen and others that state the width of a head apart from the number of heads), ``config.json`` states the new sizes
    and ``from_pretrained`` opens the folder without headtools. Otherwise it cannot, since a configuration can state
    only one number of heads. ``opens_without_headtools(folder)`` says which is the case, and why.

    The folder also has the list of pruned heads (``pruned_heads.json``) and the checksums of all files
    (``checksums.json``), by which ``load`` recognises a changed file. Before the folder gets its name, it is opened and
    every weight compared with ``model``'s, which takes memory for a second copy.

    Returns the folder. Raises ``FileExistsError`` where the folder exists, ``OSError`` where nothing can be written,
    ``TypeError`` for a model that is not a transformers model, and ``ValueError``, naming a weight, where the model
    could not be read back or weights are offloaded.

    >>> import tempfile
    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> ht.prune(model, {("encoder", 2): [0, 5]})
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     smaller, _ = ht.load(save(model, Path(parent) / "smaller", tokenizer))
    >>> ht.sites(smaller)["encoder", 2].heads
    6
    """
    folder = Path(folder)
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        kind = type(model).__name__
        raise TypeError(f"{kind} is a wrapper around a transformers model: write save(model.module, folder)")
    if not hasattr(model, "save_pretrained"):
        raise TypeError(
            f"{type(model).__name__} is not a transformers model: keep its state_dict and pruned(model) yourself"
        )
    check_plain_weights(model, model.modules(), "save")
    check_not_offloaded(model, "save")
    with atomic_folder(folder) as part:
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        with no_progress_bar():
            _write(model, part)
        write_checksums(part, sorted(path.name for path in part.iterdir()))
    return folder


def _write(model: Any, folder: Path) -> None:
    """Write configuration and weights in the first of three ways from which the model can be read back.

    First with a configuration of the new sizes; then with the old configuration; and last with the old configuration
    and the weights' names in the model instead of those on the Hub. transformers makes the Hub's names by renaming,
    splitting and joining weights, which for sizes other than the configuration's may not lead back to the same weights.
    """
    config, former_settings, reason = pruned_config(model)
    if config is not None:
        reason = _try(model, folder, config, former_settings)
        if reason is None:
            return
    for original_names in (True, False):
        difference = _try(model, folder, None, {}, reason, original_names)
        if difference is None:
            return
    raise ValueError(
        f"{type(model).__name__} cannot be read back from what transformers writes of it ({difference}), so nothing "
        "was written: keep model.state_dict() and pruned(model) yourself, and read them with replay(fresh, heads) and "
        "fresh.load_state_dict(weights)"
    )


def _try(
    model: Any, folder: Path, config: Any, former_settings: dict, reason: str | None = None, original_names: bool = True
) -> str | None:
    """Write a model, with ``config`` in place of its own unless None; return why it cannot be read back, or None."""
    try:
        model.save_pretrained(folder, max_shard_size="1TB", save_original_format=original_names)  # one file
        if config is not None:
            config.architectures, config.dtype = model.config.architectures, model.config.dtype  # as just written
            config.save_pretrained(folder)
        metadata = {
            "heads": [list(head) for head in pruned(model)],
            "ungrouped": [list(key) for key in ungrouped(model)],
            "opens_without_headtools": reason is None,
            "reason": reason or "",
            "settings": former_settings,
        }
        (folder / reader.PRUNED_HEADS).write_text(json.dumps(metadata), encoding="utf-8")
        dtype = reader.widest_dtype(model)
        with reader.quiet():
            by_headtools = load_pruned(folder, dtype)
            difference = reader.first_difference(model, by_headtools)
            if config is None or difference is not None:
                return difference
            by_transformers = load_model(str(folder), dtype)
        return reader.first_difference(model, by_transformers) or reader.same_build(by_headtools, by_transformers)
    except Exception as error:  # transformers raises all kinds of errors for sizes that it does not expect
        if explain_os_error(error, folder) is not None:
            raise
        return reader.shorten(error)


def opens_without_headtools(folder: str | Path) -> tuple[bool, str]:
    """Return whether transformers' own ``from_pretrained`` opens a folder that ``save`` wrote, and why not.

    >>> import tempfile
    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> ht.prune(model, {("encoder", 2): [0, 5]})
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     opens_without_headtools(save(model, Path(parent) / "smaller"))
    (False, 'its layers have different numbers of heads, and config.json can state only one')
    """
    metadata = reader.metadata_of(Path(folder))
    return metadata["opens_without_headtools"], metadata["reason"]


def how_to_open(folder: str | Path) -> str:
    """Return a sentence that says how to open a folder that ``save`` wrote.

    >>> import tempfile
    >>> import headtools as ht
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     how_to_open(save(ht.load()[0], Path(parent) / "same")).replace(parent, "...").replace(chr(92), "/")
    "open it with headtools.load('.../same'), or with from_pretrained, without headtools"
    """
    opens, reason = opens_without_headtools(folder)
    line = f"open it with headtools.load({str(folder)!r})"
    return line + (
        ", or with from_pretrained, without headtools" if opens else f"; transformers alone cannot: {reason}"
    )
