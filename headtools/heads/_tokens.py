"""Which tokens of a batch are real: the one rule by which every mean over tokens leaves padding out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads.sites import Site

IGNORE_INDEX = -100  # the label of a token that no loss counts, as everywhere in transformers
_MASKED = -1000.0  # an additive mask of this or less lets nothing through


def is_encoder_decoder(model: nn.Module) -> bool:
    """Tell whether a model reads one sequence and writes another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def real_tokens(model: nn.Module, site: Site, batch: Mapping, shape: tuple[int, int]) -> Tensor:
    """Return which tokens of a site are no padding: (B, T) bool, all true where the batch does not tell.

    ``shape`` is (B, T), how many rows and tokens came by the site. The batch's attention mask tells, on the decoder's
    side of a two-sided model its ``decoder_attention_mask``, or else its labels: what comes after the last one that is
    counted is padding. Of a mask by queries and keys, (B, 1, T, T), a token is real that sees something and is seen.
    Parts that read pictures are not masked.

    Raises ``ValueError`` for a mask that hides something and does not say which of these tokens.

    >>> from headtools.heads.sites import sites
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> real_tokens(model, sites(model)["encoder", 0], {"attention_mask": torch.tensor([[1, 1, 0]])}, (1, 3))
    tensor([[ True,  True, False]])
    """
    shape = tuple(shape)
    everything = torch.ones(shape, dtype=torch.bool)
    written = is_encoder_decoder(model) and site.kind != "encoder"
    name = "decoder_attention_mask" if written else "attention_mask"
    mask, labels = batch.get(name), batch.get("labels")
    if mask is None and written and isinstance(labels, Tensor) and labels.shape == shape:
        counted = (labels != IGNORE_INDEX).long()
        return counted.flip(1).cumsum(1).flip(1).bool()  # how many are counted from here on
    readers = _input_readers(model, site)
    if mask is None or (readers and getattr(readers[0], "main_input_name", None) == "pixel_values"):
        return everything
    masks = [part for part in mask.values() if part is not None] if isinstance(mask, Mapping) else [mask]
    found = everything.to(masks[0].device) if masks and isinstance(masks[0], Tensor) else everything
    for part in masks:  # one for every kind of layer, where there are several
        real = real_from_mask(part, shape, readers)
        if real is None:
            came = f"of shape {tuple(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
            raise ValueError(
                f"{name} ({came}) does not tell which of the {shape[1]} tokens of {site.label} are padding: pass one "
                f"of shape {shape}, 1 for real tokens, leave the site out with sites=[...], or leave {name} out "
                "if there is no padding"
            )
        found = found & real.to(found.device)
    return found


def model_inputs(model: nn.Module, batch: Mapping) -> dict[str, Any]:
    """Return what a model is given where its own loss is not wanted: all but the labels.

    They stay where the model makes its decoder's input of them. Where they go, the cache goes too, as with labels in
    transformers: FSMT's decoder hides what comes later only where there is none.
    """
    given = batch.keys() & {"decoder_input_ids", "decoder_inputs_embeds"}
    if is_encoder_decoder(model) and not given and getattr(batch.get("labels"), "dim", lambda: 0)() > 1:
        return dict(batch)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    own = getattr(model, "get_base_model", lambda: model)()  # of a model with adapters
    if is_encoder_decoder(model) and "labels" in batch and "use_cache" in inspect.signature(own.forward).parameters:
        inputs.setdefault("use_cache", False)
    return inputs


def _input_readers(model: nn.Module, site: Site) -> list[nn.Module]:
    """Return the parts of a model around a site that say what they read, the innermost first."""
    parts = site.name.split(".")
    around = [model.get_submodule(".".join(parts[:n])) for n in range(len(parts) - 1, -1, -1)]
    return [module for module in around if hasattr(module, "main_input_name")]


def real_from_mask(mask: Any, shape: tuple[int, int], readers: Sequence[nn.Module] = ()) -> Tensor | None:
    """Return which tokens one mask keeps, (B, T) bool, or None where it does not tell.

    ``readers`` are parts of a model that may know how many tokens they make of what the mask is for.

    >>> real_from_mask(torch.tensor([[1, 1, 0]]), (1, 3)), real_from_mask(torch.tensor([[1, 0]]), (1, 3))
    (tensor([[ True,  True, False]]), None)
    """
    if not isinstance(mask, Tensor):
        return None
    if mask.dim() == 2 and mask.shape == shape:
        return mask.bool()
    if mask.dim() == 4:
        return _real_from_pairs(_visible(mask), shape)
    if mask.bool().all():
        return torch.ones(shape, dtype=torch.bool, device=mask.device)
    if mask.dim() == 3 and mask.shape[-1] == shape[1] and mask.numel() == shape[0] * shape[1]:
        return mask.reshape(shape).bool()  # (B, choices, T): a choice is a row
    for reader in readers:  # sound, of which several frames become one token
        shorter = getattr(reader, "_get_feature_vector_attention_mask", None)
        if shorter is not None and mask.dim() == 2 and len(mask) == shape[0]:
            fewer = shorter(shape[1], mask)
            return fewer.bool() if fewer.shape == shape else None
    return None


def _visible(mask: Tensor) -> Tensor:
    """Return where a mask (B, heads, T, S), additive if it is of real numbers, lets some head through: (B, T, S)."""
    through = mask > _MASKED if mask.is_floating_point() else mask.bool()
    return through.any(1)


def _real_from_pairs(through: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Return which tokens see something and are seen, (B, T), or None where padding and real tokens look the same."""
    size = (shape[0], shape[1], through.shape[-1])
    if any(mine not in (1, need) for mine, need in zip(through.shape[:2], size[:2], strict=True)):
        return None
    through = through.expand(size)
    if through.all():
        return torch.ones(shape, dtype=torch.bool, device=through.device)
    if size[2] != size[1]:
        return None
    real = through.any(1) & through.any(2)
    # a token that sees itself alone and that no other sees is a text of one word, or padding that was spared NaN
    itself = (through.sum(1) == 1) & (through.sum(2) == 1) & through.diagonal(dim1=1, dim2=2)
    if (itself & (real.sum(1, keepdim=True) > 1)).any():
        return None
    # so is one that sees all and is seen by none but such: padding, if it is not the last word of a continuation
    sees_all = through.all(2)
    apart = sees_all & ~(through & ~sees_all[..., None]).any(1) & ~sees_all.all(1, keepdim=True)
    if apart[:, :-1].any() or (apart[:, -1] & (apart.sum(1) > 1)).any():
        return None
    return real
