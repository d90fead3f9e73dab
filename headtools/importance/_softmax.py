"""The softmax of attention, seen from inside a model: its secant in the place of its slope, and where it is saturated.

A softmax that puts nearly all of its weight on one key has a slope of nearly 0, so no gradient reaches what wrote its
queries and keys, though without that the weight would go elsewhere (AtP*, Kramár et al. 2024, arXiv:2403.00745, section
3.1, who recompute the softmax for each changed query and key). The secant has the softmax recomputed once, for scores
that are all equal, and is the linear map which is exact over that whole distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from headtools.heads.sites import Site
from headtools.importance._lrp.rules import attention_in_steps

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
    """Sees every softmax while a site's attention runs; a loss or a router of experts is outside and stays as it is."""

    def __init__(self, site: Site, replace: bool) -> None:
        super().__init__()
        self.site, self.replace = site, replace
        self.running = self.seen = False
        self.saturated: Tensor | None = None  # (H,), the share of the first example's queries; only without replace

    def enter(self, *_: Any) -> None:
        self.running = True
        self.__enter__()

    def leave(self, *_: Any) -> None:
        if self.running:  # not where another hook raised before this one entered
            self.running = False
            self.__exit__(None, None, None)
        if self.replace and not self.seen:
            raise ValueError(
                f"the softmax of {self.site.label} is hidden in a kernel, so it has no secant: load the model with "
                'attn_implementation="eager"'
            )

    def softmax(self, scores: Tensor, dim: int = -1, dtype: torch.dtype | None = None, _stacklevel: int = 3) -> Tensor:
        """Compute torch's softmax, whose parameters these are, over the last dimension."""
        self.seen = True
        if self.replace:
            return _Secant.apply(scores, dtype)
        maps = scores.float().softmax(-1)
        if maps.dim() == 4 and maps.shape[1] == self.site.heads:
            several = (maps > 0).sum(-1) > 1  # one key alone has all of the weight, and no other to give it to
            second = maps.topk(min(2, maps.shape[-1]), -1).values[..., -1]
            self.saturated = ((second < SATURATED) & several).float().mean((0, 2))
        return maps.to(scores.dtype)

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name, instead = kwargs or {}, getattr(func, "__name__", ""), None
        if name == "scaled_dot_product_attention":
            instead = partial(attention_in_steps, matmul=torch.matmul, softmax=self.softmax)
        elif name in ("softmax", "special_softmax"):
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            instead = self.softmax if dim in (-1, args[0].dim() - 1) else None
        if instead and self.replace:
            return instead(*args, **kwargs)
        if instead:  # only look, and at the first example only: (B, head, ...)
            first = [x[:1] if isinstance(x, Tensor) and x.dim() == 4 else x for x in (*args, *kwargs.values())]
            with torch.no_grad():
                instead(*first[: len(args)], **dict(zip(kwargs, first[len(args) :], strict=True)))
        return func(*args, **kwargs)


@contextmanager
def attention_softmax(sites: Iterable[Site], replace: bool) -> Iterator[dict[tuple, _Attention]]:
    """Watch the softmax of every site's attention while the context lasts; ``replace`` its derivative by the secant."""
    watched = {}
    with ExitStack() as stack:
        for site in sites:
            one = watched[site.key] = _Attention(site, replace)
            stack.callback(site.module.register_forward_pre_hook(one.enter).remove)
            stack.callback(site.module.register_forward_hook(one.leave, always_call=True).remove)
        yield watched
