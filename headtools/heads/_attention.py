"""The attention functions that headtools registers with transformers, and the switch that makes a model use them.

Requirements:

1. The result must be the model's own, bit for bit: ``headtools_eager`` runs the eager attention of the model's file and
   ``headtools_sdpa`` torch's fused attention; then they pass inputs and maps to the taps of the module.
2. Each name must be registered with a mask function as well: for an unknown name transformers builds no mask at all,
   and the model silently attends to padding and to later tokens.
3. The attention function is read from a configuration that layers, and even models, may share: it is switched through
   ``override``, and restored when the last context ends.

A third function, ``headtools_pruned``, is for the pruned layers of a T5 only: see ``_pruned_bias``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._hooks import append_entry
from headtools.heads._interventions import claimed, override
from headtools.heads._layer_config import unwrapped
from headtools.heads._layout import PRUNED
from headtools.heads._masks import check_no_sinks, check_uniform, uniform_mask, windowed, zero_heads
from headtools.heads.sites import Site

EAGER, SDPA = "headtools_eager", "headtools_sdpa"
PRUNED_BIAS = "headtools_pruned"
# entries in the __dict__ of an attention module
TAPS = "_headtools_taps"  # functions to call with its queries, keys, values and maps
WINDOW = "_headtools_window"  # (heads, first, recent) of each window
_UNIFORM = "_headtools_uniform"  # lists of heads whose attention is uniform


@contextmanager
def attention_function(model: nn.Module, name: str | None) -> Iterator[None]:
    """Let the model use our attention functions while the context lasts.

    ``name`` is EAGER for maps. None keeps the kind of kernel that the model uses, which is enough for queries, keys and
    values. A configuration shared by several open contexts or models is set to EAGER as long as one of them needs maps.
    Raises ``RuntimeError`` when the model runs after its attention was set to something else inside the context.
    """
    register()
    configs = _configs(model)
    with claimed("record() or ablate()", configs), ExitStack() as stack:
        for config in configs:
            stack.enter_context(_select_function(config, name))

        def check(_module: nn.Module, _args: tuple) -> None:
            for name in [config._attn_implementation_internal for config in configs]:
                if name not in (EAGER, SDPA):
                    raise RuntimeError(
                        f"the model's attention was set to {name!r} inside a context of headtools, which therefore "
                        "records nothing: call set_attn_implementation before entering it"
                    )

        stack.callback(model.register_forward_pre_hook(check).remove)
        yield


def _select_function(config: Any, name: str | None) -> AbstractContextManager[None]:
    def write(original: str | None, names: list[str | None]) -> None:
        # one context that needs maps makes the kernel eager; else it stays fused if the model's own is
        fused = EAGER not in names and (SDPA in names or original in ("sdpa", SDPA))
        config._attn_implementation_internal = (SDPA if fused else EAGER) if names else original

    return override(config, "attention", name, lambda: config._attn_implementation, write)


@contextmanager
def attend_uniformly(model: nn.Module, selected: Mapping[Site, list[int]]) -> Iterator[None]:
    """Make the attention of heads {site: [head, ...]} uniform while the context lasts.

    Their queries and position biases become 0, so that only the mask distinguishes keys, whatever kernel computes the
    attention.
    """
    with attention_function(model, None), ExitStack() as stack:
        for site, heads in selected.items():
            stack.enter_context(append_entry(site.module, _UNIFORM, heads))
        yield


def _configs(model: nn.Module) -> list:
    """Return each configuration object from which a module reads its attention function, once."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = unwrapped(getattr(module, "config", None))
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        switchable = getattr(module, "_can_set_attn_implementation", None)
        if switchable() if callable(switchable) else True:
            configs[id(config)] = config
    return list(configs.values())


def register() -> None:
    """Register headtools' attention functions and their mask functions with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(EAGER, _eager)
    AttentionInterface.register(SDPA, _sdpa)
    AttentionMaskInterface.register(EAGER, _eager_mask)
    AttentionMaskInterface.register(SDPA, sdpa_mask)
    AttentionInterface.register(PRUNED_BIAS, _pruned_bias)
    AttentionMaskInterface.register(PRUNED_BIAS, _no_mask)


def _eager_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    """Return transformers' own eager mask; for float64 with float32's lowest number.

    Models compute the softmax in float32, where float64's lowest number becomes -inf: a query without any visible key,
    such as padding on the left, would get NaN, and the next layer would spread it.
    """
    from transformers.masking_utils import eager_mask

    mask = eager_mask(*args, dtype=torch.float32 if dtype == torch.float64 else dtype, **kwargs)
    return None if mask is None else mask.to(dtype)


def _eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple:
    """Run the eager attention of the model's own file; taps get its maps."""
    own = _own_eager(module)
    if own is None:
        name = type(module).__name__
        raise ValueError(
            f"{name}: its file has no eager_attention_forward, so no maps can be recorded: record(model, want='z')"
        )
    if own.__module__.startswith("transformers."):  # others may expect a bool mask
        attention_mask = _additive(attention_mask, query.dtype)
    return _run(own, module, query, key, value, attention_mask, kwargs, shows_maps=True)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask that can be added to scores; a bool mask, which fused attention also accepts, is converted."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min  # as in ``_eager_mask``
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)


def _own_eager(module: nn.Module) -> Callable | None:
    for owner in type(module).__mro__:  # a subclass in another file inherits its parent's attention function
        own = getattr(sys.modules.get(owner.__module__), "eager_attention_forward", None)
        if own is not None:
            return own
    return None


def _sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple:
    """Run torch's fused attention; taps get queries, keys and values."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return _run(sdpa_attention_forward, module, query, key, value, attention_mask, kwargs, shows_maps=False)


def _run(
    function: Callable,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    kwargs: dict,
    shows_maps: bool,
) -> tuple:
    """Run an attention function; its taps get its inputs, its maps, and a way to run it with uniform attention."""

    if windows := module.__dict__.get(WINDOW):
        mask = windowed(mask, windows, q, k)

    def uniform(heads: list[int]) -> tuple:
        for name in ("sinks", "s_aux"):
            check_no_sinks(type(module).__name__, kwargs.get(name))
        bias = kwargs.get("position_bias")
        biases = {} if bias is None else {"position_bias": zero_heads(bias, heads)}
        mask_without_bias = uniform_mask(mask, heads, q.shape[1])
        result = function(module, zero_heads(q, heads), k, v, mask_without_bias, **(kwargs | biases))
        if shows_maps:
            check_uniform(module, result[1], heads)
        return result

    heads = sorted({head for heads in module.__dict__.get(_UNIFORM, ()) for head in heads})
    result = uniform(heads) if heads else function(module, q, k, v, mask, **kwargs)
    for tap in module.__dict__.get(TAPS, ()):  # (B, head or kv_head, token, width); maps (B, head, query, key)
        tap(q=q, k=k, v=v, uniform=uniform, **({"maps": result[1]} if shows_maps else {}))
    return result


def _pruned_bias(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple:
    """Run the model's attention function for a pruned T5 layer, with the position bias of its remaining heads.

    One layer computes the bias for all heads of all layers, so it can only be sliced where it is used. The function is
    looked up at every call, so that ``set_attn_implementation`` takes effect in pruned layers too.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function = ALL_ATTENTION_FUNCTIONS.get_interface(unwrapped(module.config)._attn_implementation, _own_eager(module))
    physical, bias = module.__dict__[PRUNED]["physical"], kwargs.get("position_bias")
    if bias is not None and bias.shape[1] != len(physical):
        kwargs["position_bias"] = bias[:, list(physical)]
    return function(module, q, k, v, mask, **kwargs)


def _no_mask(*_: Any, **__: Any) -> None:
    raise ValueError(
        f"got {PRUNED_BIAS!r} as a model's attention, which would have no mask; only single pruned layers use it: "
        'write model.set_attn_implementation("sdpa")'
    )
