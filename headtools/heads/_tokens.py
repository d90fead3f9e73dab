"""Which tokens of a batch are real, as opposed to padding: every mean over tokens uses this one rule.

Padding must not enter a mean, but masks differ: (B, T) from a tokenizer; (B, 1, T, S), bool or additive, made by hand;
a dict of masks, one per kind of layer; for audio a mask of samples, of which several become one token. Where a mask
does not determine the real tokens, ``real_tokens`` raises instead of guessing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._kinds import enclosing_modules
from headtools.heads.sites import Site

IGNORE_INDEX = -100  # the label of tokens without a loss, as everywhere in transformers
_MASKED = -1000.0  # an additive mask hides a key at this value or below


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether a model has an encoder and a decoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def real_tokens(model: nn.Module, site: Site, batch: Mapping, shape: tuple[int, int]) -> Tensor:
    """Return which tokens of a site are not padding: (B, T) bool, all true where the batch has no mask.

    ``shape`` is (B, T), the numbers of rows and tokens that the site processed. The batch's attention mask decides; in
    the decoder of an encoder-decoder model ``decoder_attention_mask``, or else the labels: whatever follows the last
    label that counts is padding. In a mask of queries and keys, (B, 1, T, T), a token is real if it sees a token and is
    seen. Modules that read images have no mask.

    Raises ``ValueError`` for a mask that hides something without determining which of these tokens.

    >>> from headtools.heads.sites import sites
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> real_tokens(model, sites(model)["encoder", 0], {"attention_mask": torch.tensor([[1, 1, 0]])}, (1, 3))
    tensor([[ True,  True, False]])
    """
    shape = tuple(shape)
    result = torch.ones(shape, dtype=torch.bool)
    in_decoder = is_encoder_decoder(model) and site.kind != "encoder"
    name = "decoder_attention_mask" if in_decoder else "attention_mask"
    mask, labels = batch.get(name), batch.get("labels")
    if mask is None and in_decoder and isinstance(labels, Tensor) and labels.shape == shape:
        counted = (labels != IGNORE_INDEX).long()
        return counted.flip(1).cumsum(1).flip(1).bool()  # true where a label from here on counts
    # what declares its input, the innermost first
    readers = [module for module in enclosing_modules(model, site.name) if hasattr(module, "main_input_name")]
    reads_images = bool(readers) and readers[0].main_input_name == "pixel_values"
    given = mask if isinstance(mask, Tensor) else batch.get("input_ids")
    of_text = not reads_images and isinstance(given, Tensor) and tuple(given.shape) == shape
    if not in_decoder and not of_text:  # pixel_mask, visual_attention_mask ...; a text's own mask knows its tokens
        _check_other_masks(site, batch, shape, reads_images)
    if reads_images:
        own = {name: value for name, value in batch.items() if name.endswith("mask") and name != "attention_mask"}
        same = [value for value in own.values() if isinstance(value, Tensor) and tuple(value.shape) == shape]
        return torch.stack([each.bool() for each in same]).all(0) if same else result
    if not in_decoder and any("pad_to" in name for module in readers for name in dir(type(module))):
        mask = _padded_inside(batch, mask, shape)  # Longformer, LED, BigBird
    if mask is None:
        return result
    # a dict has a mask for each kind of layer (full, sliding window)
    for layer_mask in [each for each in mask.values() if each is not None] if isinstance(mask, Mapping) else [mask]:
        real = real_from_mask(layer_mask, shape, readers)
        if real is None:
            is_tensor = isinstance(layer_mask, Tensor)
            got = f"of shape {tuple(layer_mask.shape)}" if is_tensor else f"a {type(layer_mask).__name__}"
            raise ValueError(
                f"{name} ({got}) does not tell which of the {shape[1]} tokens of {site.label} are padding: pass one "
                f"of shape {shape}, 1 for real tokens, leave the site out with sites=[...], or leave {name} out "
                "if there is no padding"
            )
        result = result.to(real.device) & real
    return result


_NO_PADDING = (
    "head_mask",
    "global_attention_mask",
    "special_tokens_mask",
    "cross_attention_mask",
    "decoder_attention_mask",
)


def _check_other_masks(site: Site, batch: Mapping, shape: tuple[int, int], reads_images: bool) -> None:
    """Raise ``ValueError`` where a mask of another name hides something, and not token by token of this site."""
    for name, value in batch.items():
        if not name.endswith("mask") or name in _NO_PADDING or not isinstance(value, Tensor) or value.bool().all():
            continue
        if name == "attention_mask" or (reads_images and tuple(value.shape) == shape):
            continue
        raise ValueError(
            f"{name} hides something, and does not tell which of the {shape[1]} tokens of {site.label} are padding: "
            "give examples of equal size, without padding, or leave the site out with sites=[...]"
        )


def _padded_inside(batch: Mapping, mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    """Return the mask with zeros for the tokens that a model adds on the right, to fill its last block."""
    given = batch.get("input_ids", batch.get("inputs_embeds"))
    if given is None or given.shape[1] >= shape[1]:
        return mask
    mask = torch.ones(given.shape[:2], dtype=torch.long, device=given.device) if mask is None else mask
    return torch.nn.functional.pad(mask, (0, shape[1] - given.shape[1])) if mask.dim() == 2 else mask


def model_inputs(model: nn.Module, batch: Mapping) -> dict[str, Any]:
    """Return the model's inputs for a forward pass without its own loss: the batch without labels.

    Labels stay where the model computes its decoder's input from them. Where they are removed, ``use_cache`` is set to
    False, as transformers does with labels: FSMT's decoder is causal only without a cache.
    """
    decoder_inputs = batch.keys() & {"decoder_input_ids", "decoder_inputs_embeds"}
    if is_encoder_decoder(model) and not decoder_inputs and getattr(batch.get("labels"), "dim", lambda: 0)() > 1:
        return dict(batch)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    base_model = getattr(model, "get_base_model", lambda: model)()  # PEFT's wrapper has another signature
    arguments = inspect.signature(base_model.forward).parameters
    if is_encoder_decoder(model) and "labels" in batch and "use_cache" in arguments:
        inputs.setdefault("use_cache", False)
    return inputs


def real_from_mask(mask: Any, shape: tuple[int, int], readers: Sequence[nn.Module] = ()) -> Tensor | None:
    """Return the real tokens by one mask, (B, T) bool, or None where it does not determine them.

    ``readers`` are modules that may be able to convert a mask of their input (audio samples) to one of tokens.

    >>> real_from_mask(torch.tensor([[1, 1, 0]]), (1, 3)), real_from_mask(torch.tensor([[1, 0]]), (1, 3))
    (tensor([[ True,  True, False]]), None)
    """
    if not isinstance(mask, Tensor):
        return None
    if mask.dim() == 2 and mask.shape == shape:
        return mask.bool()
    if mask.dim() == 4:
        visible = mask > _MASKED if mask.is_floating_point() else mask.bool()
        return _real_from_pairs(visible.any(1), shape)  # which keys a query sees in some head
    # A mask of ones of another length says that all is real only where it is longer: samples, several to a token.
    if mask.bool().all() and (mask.dim() != 2 or mask.shape[1] > shape[1]):
        return torch.ones(shape, dtype=torch.bool, device=mask.device)
    if mask.dim() == 3 and mask.shape[-1] == shape[1] and mask.numel() == shape[0] * shape[1]:
        return mask.reshape(shape).bool()  # multiple choice, (B, choices, T): each choice is a row
    for reader in readers:  # audio models, in which convolutions turn several samples into one token
        downsample = getattr(reader, "_get_feature_vector_attention_mask", None)
        if downsample is not None and mask.dim() == 2 and len(mask) == shape[0]:
            token_mask = downsample(shape[1], mask)
            return token_mask.bool() if token_mask.shape == shape else None
    return None


def _real_from_pairs(visible: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Return the tokens that see a token and are seen, (B, T), or None where padding cannot be distinguished.

    ``visible`` is (B, T, S). Libraries let a padded query see itself, or everything, so that its softmax is not NaN.
    """
    size = (shape[0], shape[1], visible.shape[-1])
    if any(actual not in (1, expected) for actual, expected in zip(visible.shape[:2], size[:2], strict=True)):
        return None
    visible = visible.expand(size)
    if visible.all():
        return torch.ones(shape, dtype=torch.bool, device=visible.device)
    if size[2] != size[1]:
        return None
    real = visible.any(1) & visible.any(2)
    # A token that sees only itself and that no other token sees is a text of one token, or padding.
    isolated = (visible.sum(1) == 1) & (visible.sum(2) == 1) & visible.diagonal(dim1=1, dim2=2)
    if (isolated & (real.sum(1, keepdim=True) > 1)).any():
        return None
    # A token that sees all tokens and is seen only by such tokens is the last token of a causal text, or padding.
    sees_all = visible.all(2)
    unseen = sees_all & ~(visible & ~sees_all[..., None]).any(1) & ~sees_all.all(1, keepdim=True)
    if unseen[:, :-1].any() or (unseen[:, -1] & (unseen.sum(1) > 1)).any():
        return None
    return real
