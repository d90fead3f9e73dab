"""The softmax of attention, seen from inside a model: its secant in the place of its slope, and where it is saturated.

A softmax that puts nearly all of its weight on one key has a slope of nearly 0, so no gradient reaches what wrote its
queries and keys, though without that the weight would go elsewhere (AtP*, Kramár et al. 2024, arXiv:2403.00745, section
3.1, who recompute the softmax for each changed query and key). The secant has the softmax recomputed once, for scores
that are all equal, and is the linear map which is exact over that whole distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from headtools.heads.sites import Site

MASKED_BELOW = 4_000.0  # a score this far below the largest of its row is a mask; sharp heads have differences of 100s
SATURATED = 1e-12  # a softmax whose second weight is this small lets about this part of the gradient pass


def secant(scores: Tensor, g: Tensor) -> Tensor:
    """Return g J for the secant J of softmax over the last dimension, from equal scores to ``scores``.

    With p the softmax, u the uniform weights on visible keys and m = (p - u) / log(p / u) their logarithmic mean,
    J = diag(m) - m m^T / sum(m): the Jacobian diag(p) - p p^T with m for p. J scores = p - u exactly.

    >>> scores = torch.tensor([300.0, 0.0, 0.0])
    >>> J = torch.stack([secant(scores, row) for row in torch.eye(3)])
    >>> [round(x, 4) for x in (J @ scores).tolist()]  # softmax(scores) is 1, 0, 0
    [0.6667, -0.3333, -0.3333]
    """
    visible = scores >= scores.amax(-1, keepdim=True) - MASKED_BELOW  # all keys of padding that sees none
    scores = scores.masked_fill(~visible, -torch.inf)
    n_visible = visible.sum(-1, keepdim=True)
    ratio = (scores.log_softmax(-1) + n_visible.log()).masked_fill(~visible, 1.0)  # log(p / u)
    mean = torch.where(ratio.abs() < 1e-4, 1.0, ratio.expm1() / ratio).masked_fill(~visible, 0.0)  # m / u
    return mean / n_visible * (g - (g * mean).sum(-1, keepdim=True) / mean.sum(-1, keepdim=True))


class _Secant(Function):
    """Softmax over the last dimension, whose derivative is its secant."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, dtype: torch.dtype | None) -> Tensor:
        ctx.save_for_backward(scores)
        return scores.softmax(-1, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        (scores,) = ctx.saved_tensors
        wide = torch.promote_types(scores.dtype, torch.float32)
        return secant(scores.to(wide), g.to(wide)).to(scores.dtype), None


class _Attention(TorchFunctionMode):
    """Passes the scores of every softmax that runs to ``softmax(scores, dtype)``, or only looks at them."""

    def __init__(self, replace: bool, see: Callable[[Tensor | None], None]) -> None:
        super().__init__()
        self.replace, self.see = replace, see

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            if self.replace:
                self.see(None)
                q, k, v, *more = args
                return _in_steps(q, k, v, *more, replace=True, **kwargs)
            with torch.no_grad():
                q, k, v, *more = (x[:1] if isinstance(x, Tensor) and x.dim() == 4 else x for x in args)
                some = {n: x[:1] if isinstance(x, Tensor) and x.dim() == 4 else x for n, x in kwargs.items()}
                self.see(_in_steps(q, k, v, *more, replace=False, **some))
        elif name in ("softmax", "special_softmax"):
            scores, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
            if dim in (-1, scores.dim() - 1):
                if self.replace:
                    self.see(None)
                    return _Secant.apply(scores, kwargs.get("dtype"))
                with torch.no_grad():
                    self.see(scores[:1].float().softmax(-1))
        return func(*args, **kwargs)


def _in_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    replace: bool = False,
) -> Tensor:
    """Return torch's fused attention in steps, by the secant, or else its maps."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min) if is_bool else scores + attn_mask
    return _Secant.apply(scores, None) @ v if replace else scores.float().softmax(-1)


@contextmanager
def attention_softmax(sites: Iterable[Site], replace: bool) -> Iterator[Mapping[tuple, Tensor | None]]:
    """Follow every softmax in the attention of ``sites`` while the context lasts; those of a loss stay as they are.

    ``replace``: its derivative is the secant. The mapping that is yielded has the sites whose softmax was seen; without
    ``replace``, with the share of the first example's queries at which each head is saturated, (H,).
    """
    seen: dict[tuple, Tensor | None] = {}
    with ExitStack() as stack:
        for site in sites:
            running: list[_Attention] = []

            def see(maps: Tensor | None, site: Site = site) -> None:
                seen[site.key] = None
                if maps is not None and maps.dim() == 4 and maps.shape[1] == site.heads:
                    several = (maps > 0).sum(-1) > 1  # one key alone has all of the weight, and no other to give it to
                    second = maps.topk(min(2, maps.shape[-1]), -1).values[..., -1]
                    seen[site.key] = ((second < SATURATED) & several).float().mean((0, 2))

            def enter(*_: Any, see: Callable = see, running: list = running) -> None:
                running.append(_Attention(replace, see))
                running[-1].__enter__()

            def leave(*_: Any, site: Site = site, running: list = running) -> None:
                running.pop().__exit__(None, None, None)
                if replace and site.key not in seen:
                    raise ValueError(
                        f"the softmax of {site.label} is hidden in a kernel, so it has no secant: load the model with "
                        'attn_implementation="eager"'
                    )

            stack.callback(site.module.register_forward_pre_hook(enter).remove)
            stack.callback(site.module.register_forward_hook(leave, always_call=True).remove)
        yield seen
