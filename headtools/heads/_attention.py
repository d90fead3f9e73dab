"""The attention functions that headtools registers with transformers, and the switch that makes a model use them.

The result must be the model's own, bit for bit: ``headtools_eager`` runs the eager attention of the model's file and
``headtools_sdpa`` torch's fused attention; then they pass inputs and maps to the taps of the module. For texts whose
maps are too large ``headtools_blocks`` asks the eager attention for some queries at a time. Each is registered with a
mask function: for an unknown name transformers builds no mask, and the model silently attends to padding and to later
tokens. Configurations are shared by layers, even models: ``override`` switches and restores them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._hooks import claimed, entries, override
from headtools.heads._layout import PRUNED

EAGER, SDPA, BLOCKS = "headtools_eager", "headtools_sdpa", "headtools_blocks"
PRUNED_BIAS = "headtools_pruned"
# entries of an attention module
TAPS = "taps"  # functions to call with its queries, keys, values and maps
ROWS = "rows"  # functions to call with some rows of its maps, the index of the first query, and how many there are
WINDOW = "window"  # (heads, first, recent) of each window
UNIFORM = "uniform"  # lists of heads whose attention is uniform

WHOLE = 256  # queries up to which a text is one block
N_QUERIES = 64  # of a block of longer ones: few enough that its rows stay in the processor's cache
LAZY_FROM = 2**20  # cells of a mask: larger ones are made block by block
MASKED_BELOW = 64.0  # a key this far below the largest of its row is masked: e^-64 vanishes in any precision
ALTERNATIVES = 'use replacement="mean", "resample" or "zero"'


@contextmanager
def attention_function(model: nn.Module, name: str | None) -> Iterator[None]:
    """Let the model use our attention functions while the context lasts.

    ``name`` is EAGER for maps, BLOCKS for their rows. None keeps the kind of kernel that the model uses, enough for
    queries, keys and values. A configuration shared by several open contexts or models is set to EAGER as long as
    one of them needs maps.
    Raises ``ValueError`` for a model that asks for its kernel by name, ``RuntimeError`` when the model runs after its
    attention was set to something else inside the context.
    """
    if asking := _asks_for_kernel(model):
        raise ValueError(
            f"{asking} hides keys only while its kernel is called 'sdpa' or 'eager', so that it would be another model "
            "inside headtools' attention: outputs z and gates work, record(model, want='z')"
        )
    register()
    configs = _configs(model)

    def check(_module: nn.Module, _args: tuple) -> None:
        for config in configs:
            name = config._attn_implementation_internal
            if name not in (EAGER, SDPA, BLOCKS):
                raise RuntimeError(
                    f"the model's attention was set to {name!r} inside a context of headtools, which therefore "
                    "records nothing: call set_attn_implementation before entering it"
                )

    with claimed("record() or ablate()", configs), ExitStack() as stack:
        for config in configs:

            def write(original: str | None, names: list, config: Any = config) -> None:
                # one context that needs maps makes the kernel eager; else it stays fused if the model's own is
                fused = SDPA if original in ("sdpa", SDPA) else EAGER
                kernel = EAGER if EAGER in names else BLOCKS if BLOCKS in names else fused
                config._attn_implementation_internal = kernel if names else original

            stack.enter_context(override(config, "attention", name, lambda c=config: c._attn_implementation, write))
        stack.callback(model.register_forward_pre_hook(check).remove)
        yield


def _asks_for_kernel(model: nn.Module) -> str:
    """Return the class of a module that compares the kernel's name with 'sdpa' (DeepSeek V3.2's sparse index), or ''.

    Whole models are left out: they ask it for shortcuts such as Gemma 4's, which computes fewer logits.
    """
    for kind in dict.fromkeys(type(module) for module in model.modules() if not hasattr(type(module), "base_model")):
        for method in vars(kind).values():
            code = getattr(method, "__code__", None)
            if code is not None and "_attn_implementation" in code.co_names:
                texts = {text for value in code.co_consts for text in (value if isinstance(value, tuple) else (value,))}
                if "sdpa" in texts:
                    return kind.__name__
    return ""


def _configs(model: nn.Module) -> list:
    """Return each configuration object from which a module reads its attention function, once."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        config = getattr(config, "shared", config)  # a pruned layer's view
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

    functions = {EAGER: (_eager, _eager_mask), SDPA: (_sdpa, sdpa_mask), BLOCKS: (_blocks, _lazy_mask)}
    functions[PRUNED_BIAS] = (_pruned_bias, _no_mask)
    for name, (attention, mask) in functions.items():
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, mask)


def _eager_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    """Return transformers' own eager mask; for float64 with float32's lowest number.

    Models compute the softmax in float32, where float64's lowest number becomes -inf: a query without any visible key,
    such as padding on the left, would get NaN, and the next layer would spread it.
    """
    from transformers.masking_utils import eager_mask

    mask = eager_mask(*args, dtype=torch.float32 if dtype == torch.float64 else dtype, **kwargs)
    return None if mask is None else mask.to(dtype)


def _lowest(dtype: torch.dtype) -> float:
    return torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min


def _eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple:
    """Run the eager attention of the model's own file; taps get its maps."""
    own, attention_mask = _for_eager(module, query, attention_mask)
    return _run(own, module, query, key, value, attention_mask, kwargs, shows_maps=True)


def _for_eager(module: nn.Module, query: Tensor, mask: Tensor | None) -> tuple[Callable, Tensor | None]:
    """Return the eager attention of a module's file and a mask as it expects it; refuse a file that has none."""
    own = _own_eager(module)
    if own is None:
        name = type(module).__name__
        raise ValueError(
            f"{name}: its file has no eager_attention_forward, so no maps can be recorded: record(model, want='z')"
        )
    # fused attention also accepts a bool mask, transformers' eager functions add it to scores; others may expect it
    if own.__module__.startswith("transformers.") and mask is not None and mask.dtype == torch.bool:
        added = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
        mask = added.masked_fill_(~mask, _lowest(query.dtype))
    return own, mask


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
    """Run an attention function, uniform for some heads if so asked; taps get its inputs, maps and visible keys."""
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    # without a mask fused attention hides later keys itself, and eager attention hides nothing
    causal = bool(causal) and not shows_maps and q.shape[2] > 1
    if windows := entries(module, WINDOW):
        mask = windowed(mask, windows, q, k, causal)

    def visible() -> Tensor:
        return visible_keys(mask, q, k, causal).expand(len(q), -1, -1, -1)

    asking, added = q, mask
    # Softmax of equal scores is uniform, so what distinguishes one key from another is set to 0: queries, position
    # bias, and the part of the mask that is a bias. What hides a key stays, whatever kernel computes attention.
    if uniform := sorted(set().union(*entries(module, UNIFORM))):
        for name in ("sinks", "s_aux"):
            check_no_sinks(type(module).__name__, kwargs.get(name))
        if kwargs.get("position_bias") is not None:
            kwargs = kwargs | {"position_bias": _zero_heads(kwargs["position_bias"], uniform)}
        asking, added = _zero_heads(q, uniform), uniform_mask(mask, uniform, q.shape[1])
    result = function(module, asking, k, v, added, **kwargs)
    if uniform and shows_maps:
        _check_uniform(module, result[1], uniform)
    if shows_maps and result[1] is not None:  # all rows are one block; where there are several, they were shown already
        for see in entries(module, ROWS):
            see(rows=result[1], first=0, n_queries=q.shape[2])
    for tap in entries(module, TAPS):  # (B, head or kv_head, token, width); maps (B, head, query, key)
        maps = {"maps": result[1]} if shows_maps else {}
        tap(q=q, k=k, v=v, visible=visible, **maps)
    return result


# --- blocks of queries ------------------------------------------------------------------------------------------------


def _blocks(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple:
    """Run the eager attention of the model's own file for a block of queries at a time; ROWS functions get its rows."""
    foreign = not type(module).__module__.startswith("transformers.")
    as_a_whole = entries(module, TAPS) or (foreign and entries(module, UNIFORM)) or query.shape[2] <= WHOLE
    if as_a_whole or entries(module, WINDOW) or entries(module, UNIFORM):  # these read the whole mask
        attention_mask = _mask_rows(attention_mask, 0, query.shape[2])
    if as_a_whole:
        return _eager(module, query, key, value, attention_mask, **kwargs)
    return _run(_by_blocks, module, query, key, value, attention_mask, kwargs, shows_maps=True)


def _by_blocks(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple:
    n_queries = q.shape[2]
    _mask_rows(mask, 0, 1)  # raises where the model changed it

    def ask(first: int, last: int) -> tuple:
        own, rows_of_mask = _for_eager(module, q, _mask_rows(mask, first, last))
        bias = kwargs.get("position_bias")  # (1 or B, head, query, key)
        part = {} if bias is None or bias.shape[2] == 1 else {"position_bias": bias[:, :, first:last]}
        return own(module, q[:, :, first:last], k, v, rows_of_mask, **(kwargs | part))

    if not _can_be_asked(ask, n_queries):
        warnings.warn(
            f"{type(module).__name__} gives other rows when it is asked for some queries only, so whole attention maps "
            "are computed: memory grows with the square of the text",
            stacklevel=2,
        )
        return ask(0, n_queries)
    outputs, whole = [], None
    for first in range(0, n_queries, N_QUERIES):
        output, rows = ask(first, min(first + N_QUERIES, n_queries))
        for see in entries(module, ROWS):
            see(rows=rows, first=first, n_queries=n_queries)
        del rows  # before the next block is computed
        if output.requires_grad:
            outputs.append(output)
            continue
        # Into one tensor: a small one kept from each block may lie where the block's rows were, so that the next rows
        # do not fit there any more. At 8,192 tokens memory grew by up to 2 GB in this way.
        if whole is None:
            whole = output.new_empty(output.shape[0], n_queries, *output.shape[2:])
        whole[:, first : first + N_QUERIES] = output
        del output
    return (torch.cat(outputs, 1) if outputs else whole), None


@torch.no_grad()
def _can_be_asked(ask: Callable[[int, int], tuple], n_queries: int) -> bool:
    """Return whether a function gives the same rows for the last of some queries, asked for without the first ones.

    What it adds to scores may depend on where a query is in the tensor that it gets.
    """
    some, half = min(32, n_queries), min(16, n_queries // 2)
    try:
        (output, rows), (part, part_rows) = ask(n_queries - some, n_queries), ask(n_queries - half, n_queries)
    except (RuntimeError, ValueError, IndexError):  # shapes that do not fit
        return False
    if rows is None or rows.shape[2] != some or output.shape[1] != some:
        return False
    close = 1e-5 if rows.dtype == torch.float32 else 1e-2
    return all(
        torch.allclose(a.float(), b.float(), rtol=close, atol=close)
        for a, b in ((rows[:, :, some - half :], part_rows), (output[:, some - half :], part))
    )


_LAZY: dict[int, Callable[[int, int], Tensor]] = {}  # by the storage of a lazy mask: its rows


def _lazy_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return the eager mask; of a long text one NaN in place of all cells, whose rows ``_mask_rows`` makes.

    NaN, so that a model that changes the mask before its attention reads it does not go unnoticed.
    """
    n_queries = kwargs.get("q_length")
    if args or not isinstance(n_queries, int) or n_queries * kwargs["kv_length"] < LAZY_FROM:
        return _eager_mask(*args, **kwargs)
    start = kwargs.pop("q_offset", 0)

    def rows(first: int, last: int) -> Tensor | None:
        return _eager_mask(**(kwargs | {"q_length": last - first, "q_offset": start + first}))

    one = rows(0, 1)
    if one is None:
        return None
    lazy = torch.full((), torch.nan, dtype=one.dtype, device=one.device)
    if len(_LAZY) > 64:  # many more than one forward pass makes
        del _LAZY[next(iter(_LAZY))]
    _LAZY.pop(lazy.data_ptr(), None)
    _LAZY[lazy.data_ptr()] = rows
    return lazy.expand(*one.shape[:2], n_queries, one.shape[-1])


def _mask_rows(mask: Tensor | None, first: int, last: int) -> Tensor | None:
    """Return the rows of a mask of some queries, (B or 1, head or 1, last - first, K)."""
    if not isinstance(mask, Tensor):
        return mask
    if mask.is_floating_point() and mask[(0,) * mask.dim()].isnan():
        if any(mask.stride()) or mask.data_ptr() not in _LAZY:
            raise ValueError(
                "the model changes the attention mask of a long text before its attention reads it, so its rows cannot "
                f"be made in blocks: pass texts of fewer than {int(LAZY_FROM**0.5)} tokens"
            )
        return _LAZY[mask.data_ptr()](first, last)[..., : mask.shape[-1]]
    if mask.dim() < 2 or mask.shape[-2] == 1:
        return mask
    return mask[..., first:last, :]


# --- masks ------------------------------------------------------------------------------------------------------------


def visible_keys(mask: Tensor | None, query: Tensor, key: Tensor, causal: bool) -> Tensor:
    """Return which keys each query may see: (B or 1, head or 1, Q, K) bool.

    ``mask`` is the attention function's: bool, additive, or None, where fused attention hides later keys if ``causal``.
    """
    if mask is None:
        # the first query sees the first key, also in a static cache, whose other slots are still empty
        visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        return (visible.tril() if causal else visible)[None, None]
    mask = mask[(None,) * (4 - mask.dim())][..., : key.shape[-2]]
    # some models (BEiT, Swin, Parakeet) add a position bias to the mask, and what hides a key is a lower number, -100
    return mask if mask.dtype == torch.bool else mask > mask.amax(-1, keepdim=True) - MASKED_BELOW


def windowed(mask: Tensor | None, windows: Iterable[tuple], query: Tensor, key: Tensor, causal: bool) -> Tensor | None:
    """Return the mask (B, head, Q, K) in which some heads see only the first and the most recent keys.

    The real keys, and which of them is the query's own, follow from ``mask``, which handles padding on either side and
    caches longer than the text. Where nothing is hidden, the mask is returned unchanged.

    >>> q = torch.zeros(1, 1, 4, 2)
    >>> windowed(None, [((0,), 0, 2)], q, q, causal=True).int()
    tensor([[[[1, 0, 0, 0],
              [1, 1, 0, 0],
              [0, 1, 1, 0],
              [0, 0, 1, 1]]]], dtype=torch.int32)
    """
    visible = visible_keys(mask, query, key, causal)  # (B or 1, head or 1, Q, K)
    real = visible.any(-2, keepdim=True)  # keys that some query sees
    index = real.long().cumsum(-1) - 1  # of each key among the real ones
    own = index.masked_fill(~visible, -1).amax(-1, keepdim=True)  # the last key that a query sees is its own ...
    latest = torch.arange(query.shape[-2], device=own.device)[:, None] + key.shape[-2] - query.shape[-2]
    if (own > latest).any():  # ... unless it sees later ones, as in the prefix of a prefix language model
        raise ValueError(
            "some queries see later keys (a prefix mask, or an image that sees all of itself), so it is not defined "
            "which keys are recent: window() is for causal attention; pass a causal mask"
        )
    allowed = visible.expand(-1, query.shape[1], -1, -1).clone()
    for heads, first, recent in windows:
        limited = visible & ((index < first) | (own - index < recent))
        allowed[:, list(heads)] &= limited if limited.shape[1] == 1 else limited[:, list(heads)]
    if torch.equal(allowed, visible.expand_as(allowed)):
        return mask
    return allowed if mask is None or mask.dtype == torch.bool else mask.masked_fill(~allowed, _lowest(mask.dtype))


def _zero_heads(values: Tensor, heads: list[int]) -> Tensor:
    """Return queries or biases (B, head, ...) with those of ``heads`` set to 0."""
    return values.index_fill(1, torch.tensor(heads, device=values.device), 0.0)


def uniform_mask(mask: Tensor | None, heads: list[int], n_heads: int) -> Tensor | None:
    """Return the mask (B, head or 1, Q, K) without its bias for ``heads``: they see all visible keys equally.

    >>> uniform_mask(torch.tensor([[[[0.5, -2.0, -100.0]]]]), [1], 2).tolist()
    [[[[0.5, -2.0, -100.0]], [[0.0, 0.0, -100.5]]]]
    """
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        return mask
    mask = mask[(None,) * (4 - mask.dim())]
    relative = mask - mask.amax(-1, keepdim=True)
    visible = ~(relative < -MASKED_BELOW)
    if mask.shape[1] == 1 and not (visible & (relative < 0)).any():  # one for all heads, which rarely has a bias
        return mask
    selected = torch.zeros(n_heads, dtype=torch.bool, device=mask.device)
    selected[heads] = True
    return torch.where(selected[:, None, None], relative.masked_fill(visible, 0.0), mask)


def check_no_sinks(name: str, sinks: object) -> None:
    """Raise ``ValueError`` where an attention module has sinks, which take part of every row."""
    if sinks is not None:
        raise ValueError(
            f"{name} has attention sinks: part of every row goes to no token, so no row can be uniform: {ALTERNATIVES}"
        )


def _check_uniform(module: nn.Module, maps: Tensor | None, heads: list[int]) -> None:
    """Raise ``ValueError`` where the maps of ``heads`` are not uniform, in a model that is not transformers' own.

    Such a model's attention may add something besides queries, ``position_bias`` and mask, which only its file knows.
    """
    if type(module).__module__.startswith("transformers.") or maps is None:
        return
    weights = maps[:, heads].detach().float()
    uneven = (weights > 1e-20) & (weights < weights.amax(-1, keepdim=True) * (1 - 1e-2))
    if uneven.any() or ((weights.sum(-1) - 1).abs() > 1e-2).any():
        raise ValueError(
            f"{type(module).__name__} is not uniform without its queries and position_bias: its attention adds "
            f"something that headtools does not know (a bias, a sink): {ALTERNATIVES}"
        )


# --- pruned layers ----------------------------------------------------------------------------------------------------


def _pruned_bias(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple:
    """Run the model's attention function for a pruned T5 layer, with the position bias of its remaining heads.

    One layer computes the bias for all heads of all layers, so it can only be sliced where it is used. The function is
    looked up at every call, so that ``set_attn_implementation`` takes effect in pruned layers too.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = unwrapped_config(module.config)._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get_interface(name, _own_eager(module))
    physical, bias = module.__dict__[PRUNED]["physical"], kwargs.get("position_bias")
    if bias is not None and bias.shape[1] != len(physical):
        kwargs["position_bias"] = bias[:, list(physical)]
    return function(module, q, k, v, mask, **kwargs)


def _no_mask(*_: Any, **__: Any) -> None:
    raise ValueError(
        f"got {PRUNED_BIAS!r} as a model's attention, which would have no mask; only single pruned layers use it: "
        'write model.set_attn_implementation("sdpa")'
    )


class LayerConfig:
    """A view of a model's configuration in which some settings have another value, for a pruned layer.

    Phi-3's attention reads its number of heads from the configuration that all layers share, so a pruned layer needs
    its own. A copy would miss later changes: ``set_attn_implementation`` would change the mask and the other layers,
    and leave this layer with the old kernel. So everything not in ``own`` is read from and written to ``shared``.

    >>> from types import SimpleNamespace
    >>> shared = SimpleNamespace(num_attention_heads=8, sliding_window=None)
    >>> layer = LayerConfig(shared, {"num_attention_heads": 6})
    >>> shared.sliding_window = 4
    >>> layer.num_attention_heads, layer.sliding_window, shared.num_attention_heads
    (6, 4, 8)
    """

    shared: Any
    own: dict[str, Any]

    def __init__(self, shared: Any, own: dict[str, Any]) -> None:
        register()  # for a new process that has only unpickled the model
        self.__dict__.update(shared=unwrapped_config(shared), own=dict(own))

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__
        if name.startswith("__") or "shared" not in parts:  # copy and pickle look these up before __init__ has run
            raise AttributeError(name)
        return parts["own"][name] if name in parts["own"] else getattr(parts["shared"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(self.own.get(name), int):
            self.own[name] = value
        else:
            setattr(self.shared, name, value)

    def __reduce__(self) -> tuple:
        return LayerConfig, (self.shared, self.own)

    def __repr__(self) -> str:
        return f"LayerConfig({type(self.shared).__name__}, {self.own})"


def unwrapped_config(config: Any) -> Any:
    """Return the model's configuration behind a pruned layer's own, or ``config`` itself."""
    return config.shared if isinstance(config, LayerConfig) else config
