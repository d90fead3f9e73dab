"""Save a pruned model to a folder that ``load`` reads: its weights, and the list of heads that are gone.

transformers alone cannot read most pruned models, since one number of heads in config.json stands for all layers. So
``load`` builds the full model, prunes it by the list, and fills it with the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headtools._engine.store import atomic_folder
from headtools.heads._checks import check_not_offloaded, check_plain_weights
from headtools.heads.prune import pruned, ungrouped
from headtools.organism._checksums import write_checksums
from headtools.organism.load import PRUNED_HEADS, load_pruned, no_progress_bar, shorten


def save(model: Any, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write a pruned transformers model, with its tokenizer, whole or not at all to a new folder, and return it.

    The folder has ``config.json`` (the full model's), ``model.safetensors``, the pruned heads (``pruned_heads.json``)
    and all files' checksums (``checksums.json``), by which ``load`` recognises a changed file. Before the folder gets
    its name it is read back, which takes memory for a second copy of the model.

    Raises ``FileExistsError`` where the folder exists, ``OSError`` where nothing can be written, ``TypeError`` for a
    class that is not transformers' own, and ``ValueError`` where weights are offloaded or do not fit the pruned heads.

    >>> import tempfile
    >>> import headtools as ht
    >>> model, tokenizer = ht.load()
    >>> ht.prune(model, {("encoder", 2): [0, 5]})
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     smaller, _ = ht.load(save(model, Path(parent) / "smaller", tokenizer))
    >>> ht.sites(smaller)["encoder", 2].heads
    6
    """
    import transformers

    folder, kind = Path(folder), type(model).__name__
    check_plain_weights(model, model.modules(), "save")
    check_not_offloaded(model, "save")
    by_yourself = "keep model.state_dict() and ht.pruned(model); ht.replay(fresh, heads) makes them fit a fresh model"
    if getattr(transformers, kind, None) is not type(model):
        raise TypeError(
            f"got {kind}; expected a model class of transformers, which load can build again: save what a wrapper "
            f"holds (save(model.module, folder)), or {by_yourself}"
        )
    with atomic_folder(folder) as part, no_progress_bar():
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        # Weights keep their names in the model. The Hub's names come from splitting and joining weights by the sizes in
        # the configuration, which are no longer the model's.
        model.save_pretrained(part, max_shard_size="1TB", save_original_format=False)
        heads = {"heads": [list(head) for head in pruned(model)], "ungrouped": [list(key) for key in ungrouped(model)]}
        (part / PRUNED_HEADS).write_text(json.dumps(heads), encoding="utf-8")
        try:
            load_pruned(part, model.dtype)
        except ValueError as error:
            raise ValueError(
                f"{kind} cannot be read back ({shorten(error.__cause__)}), so nothing was written: {by_yourself}"
            ) from error
        write_checksums(part, sorted(path.name for path in part.iterdir()))
    return folder
