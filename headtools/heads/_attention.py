"""The attention functions that headtools registers with transformers, and the switch that makes a model use them.

Two names, ``headtools_eager`` and ``headtools_sdpa``, run the attention the model would have run and hand what they
see to the taps of the module. Each is registered with a mask function: without one transformers builds no mask at all,
and padding and causality vanish without a word. A third, ``headtools_pruned``, is what the cut layers of a T5 read, and
they alone: it runs whatever function the rest of the model names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._interventions import claimed, override
from headtools.heads._layer_config import unwrapped
from headtools.heads._layout import PRUNED
from headtools.heads._uniform import check_no_sinks, check_uniform, uniform_mask, zero_heads
from headtools.heads._window import WINDOW, windowed
from headtools.heads.sites import Site

EAGER, SDPA = "headtools_eager", "headtools_sdpa"
PRUNED_BIAS = "headtools_pruned"
TAPS = "_headtools_taps"  # in the __dict__ of a module that is being recorded: functions called with what it computed
_UNIFORM = "_headtools_even"  # there, too: the heads of that module that look at everything they may see alike


@contextmanager
def attention_function(model: nn.Module, name: str | None) -> Iterator[None]:
    """Make the configurations that the model's attention reads name our function, and give each its own name back.

    ``name`` is EAGER where maps are wanted. None keeps the kind of kernel that the model already uses, through which
    queries, keys and values can be seen. A configuration that several open contexts or models share names EAGER as long
    as one of them wants maps. Raises ``RuntimeError`` when the model runs with another attention, set meanwhile.
    """
    register()
    configs = _configs(model)
    with ExitStack() as stack:
        stack.enter_context(claimed("record() or ablate()", configs))
        for config in configs:
            stack.enter_context(_select_function(config, name))

        def check(_module: nn.Module, _args: tuple) -> None:
            for name in [config._attn_implementation_internal for config in configs]:
                if name not in (EAGER, SDPA):
                    raise RuntimeError(
                        f"the model's attention was set to {name!r} inside a context of headtools, which "
                        "therefore sees nothing: call set_attn_implementation before entering it"
                    )

        stack.callback(model.register_forward_pre_hook(check).remove)
        yield


def _select_function(config: Any, name: str | None) -> AbstractContextManager[None]:
    def write(own: str | None, names: list[str | None]) -> None:
        fused = EAGER not in names and (SDPA in names or own in ("sdpa", SDPA))
        config._attn_implementation_internal = (SDPA if fused else EAGER) if names else own

    return override(config, "attention", name, lambda: config._attn_implementation, write)


@contextmanager
def attend_uniformly(model: nn.Module, chosen: Mapping[Site, list[int]]) -> Iterator[None]:
    """Make heads {site: [head, ...]} look at all tokens they may see alike while the context lasts.

    Their queries become 0 and so do position biases, so that nothing but the mask tells one key from another, whatever
    kernel computes the attention.
    """
    with attention_function(model, None), ExitStack() as stack:
        for site, heads in chosen.items():
            stack.enter_context(_uniform_module(site.module, heads))
        yield


def _uniform_module(module: nn.Module, heads: list[int]) -> AbstractContextManager[None]:
    def write(_original: None, several: list[list[int]]) -> None:
        module.__dict__[_UNIFORM] = sorted({head for heads in several for head in heads})
        if not several:
            del module.__dict__[_UNIFORM]

    return override(module, "even heads", heads, lambda: None, write)


def _configs(model: nn.Module) -> list:
    """Return every configuration object, once, that a module using the interface reads its attention function from."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = unwrapped(getattr(module, "config", None))
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        switchable = getattr(module, "_can_set_attn_implementation", None)
        if switchable() if callable(switchable) else True:
            found[id(config)] = config
    return list(found.values())


def register() -> None:
    """Register headtools' attention functions and their mask functions with transformers (twice does no harm)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(EAGER, _eager)
    AttentionInterface.register(SDPA, _sdpa)
    AttentionMaskInterface.register(EAGER, _eager_mask)
    AttentionMaskInterface.register(SDPA, sdpa_mask)
    AttentionInterface.register(PRUNED_BIAS, _pruned_bias)
    AttentionMaskInterface.register(PRUNED_BIAS, _no_mask)


def _eager_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    """Make transformers' own eager mask, in double precision with float32's lowest number.

    Models take the softmax in float32, where float64's lowest number is -inf: a query that may see nothing, as padding
    on the left, would get NaN, and the next layer would spread it.
    """
    from transformers.masking_utils import eager_mask

    mask = eager_mask(*args, dtype=torch.float32 if dtype == torch.float64 else dtype, **kwargs)
    return None if mask is None else mask.to(dtype)


def _eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple:
    """Run the eager attention of the model's own file and keep its map."""
    own = _own_eager(module)
    if own is None:
        name = type(module).__name__
        raise ValueError(f"{name}: its file has no eager_attention_forward, so no maps can be recorded")
    if own.__module__.startswith("transformers."):  # which adds its masks; attention written by others knows its own
        attention_mask = _additive(attention_mask, query.dtype)
    return _run(own, module, query, key, value, attention_mask, kwargs, shows_maps=True)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask that can be added to scores: one of truth values, which fused attention takes as well, cannot."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min  # as in ``_eager_mask``
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)


def _own_eager(module: nn.Module) -> Callable | None:
    for owner in type(module).__mro__:
        own = getattr(sys.modules.get(owner.__module__), "eager_attention_forward", None)
        if own is not None:
            return own
    return None


def _sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple:
    """Run torch's fused attention and keep what went in."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return _run(sdpa_attention_forward, module, query, key, value, attention_mask, kwargs, shows_maps=False)


def _run(
    function: Callable, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kwargs: dict,
    shows_maps: bool,
) -> tuple:  # fmt: skip
    """Run an attention function and show its taps what it took and gave, and how to run it with even attention."""

    if windows := module.__dict__.get(WINDOW):
        mask = windowed(mask, windows, q, k)

    def even(heads: list[int]) -> tuple:
        check_no_sinks(module, kwargs)
        biases = {name: zero_heads(kwargs[name], heads) for name in ("position_bias",) if kwargs.get(name) is not None}
        seen = uniform_mask(mask, heads, q.shape[1])
        result = function(module, zero_heads(q, heads), k, v, seen, **(kwargs | biases))
        if shows_maps:
            check_uniform(module, result[1], heads)
        return result

    heads = module.__dict__.get(_UNIFORM)
    result = even(heads) if heads else function(module, q, k, v, mask, **kwargs)
    for tap in module.__dict__.get(TAPS, ()):
        tap(q=q, k=k, v=v, even=even, **({"maps": result[1]} if shows_maps else {}))
    return result


def _pruned_bias(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple:
    """Run the model's attention function for a pruned T5 layer, with the position bias of its remaining heads.

    One layer makes the bias for all heads of all layers, so it cannot be cut where it is made. The function is looked
    up at every call, so that ``set_attn_implementation`` reaches pruned layers as it does the others.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    own = ALL_ATTENTION_FUNCTIONS.get_interface(unwrapped(module.config)._attn_implementation, _own_eager(module))
    physical, bias = module.__dict__[PRUNED]["physical"], kwargs.get("position_bias")
    if bias is not None and bias.shape[1] != len(physical):
        kwargs["position_bias"] = bias[:, list(physical)]
    return own(module, q, k, v, mask, **kwargs)


def _no_mask(*_: Any, **__: Any) -> None:
    raise ValueError(
        f"got {PRUNED_BIAS!r} as a model's attention, which would have no mask; only single pruned layers use it: "
        'write model.set_attn_implementation("sdpa")'
    )
