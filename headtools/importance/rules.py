"""Layer-wise relevance propagation, operation by operation, on any PyTorch model: ``with rules("attnlrp"):``.

Inside the context every operation runs as it is. What changes is the way back: ``torch.autograd.grad`` then gives,
instead of the gradient, a g with which x * g is the relevance R(x) of every tensor x that took part (see
``rule_functions``). Nothing is replaced in the model; a ``TorchFunctionMode`` sees the operations go by.

Sources: Bach et al. 2015 (10.1371/journal.pone.0130140) for epsilon and alpha-beta; Achtibat et al. 2024
(arXiv:2402.05602) for AttnLRP; Voita et al. 2019 (arXiv:1905.09418), appendix A, for head relevance. Other projects
report that a patent has been applied for on methods of this family; if your use is commercial, look into that first.

"voita" is the rule of Voita et al.'s code, "ratio" the one that their appendix prints. "voita" shares by sign, holding
attention constant, so that R stays within bounds. Under "ratio" the factors of a product share by their size, and R
goes on through softmax. Where parts cancel there is no bound: in the organism's six layers a head's R is 10^16 times
what is explained, and rounding alone, in double precision too, makes more than the whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from headtools.importance.operations import Propagation, active
from headtools.importance.rule_functions import identity


@dataclass(frozen=True)
class Rules:
    """How relevance goes back through each kind of operation.

    ``linear``: maps with a weight, convolutions included. "zero" shares R(y) in proportion to x_i w_i / y; "epsilon"
    adds ``epsilon`` to the size of y; "ratio" leaves biases out of y, so that they get nothing, and passes over layer
    normalisations; "alphabeta" gives ``alpha`` to the parts of positive sign and the rest to those of negative sign.
    ``sums``: additions and the mixing of values by attention follow alpha-beta too, and a layer
    normalisation passes relevance on unchanged; otherwise all of them are shared in proportion.
    ``attention``: "through" follows softmax by its gradient and halves the relevance of every product of two
    activations; "constant" holds the weights of attention fixed; "ratio" passes over softmax and gives factors of a
    product shares in proportion to their size. ``others``: normalisations divide by a constant,
    activation functions pass relevance on unchanged, products are halved, and an operation without a rule shares by its
    tangent (``tangent``); without it all of them, and attention, are plain gradients.
    """

    linear: str = "zero"
    alpha: float = 1.0
    epsilon: float = 1e-6
    sums: bool = False
    attention: str = "through"
    others: bool = True

    def __post_init__(self) -> None:
        linear, attention = ("zero", "epsilon", "ratio", "alphabeta"), ("through", "constant", "ratio")
        if self.linear not in linear or self.attention not in attention:
            raise ValueError(
                'linear is "zero", "epsilon", "ratio" or "alphabeta" and attention "through", "constant" or "ratio"; '
                f"got {self.linear!r} and {self.attention!r}"
            )
        if not self.epsilon > 0 or not abs(self.alpha) < float("inf"):
            raise ValueError(f"epsilon is positive and alpha a number, got {self.epsilon} and {self.alpha}")


NAMED = {
    "attnlrp": Rules(),
    "cp": Rules(attention="constant"),
    "epsilon": Rules(linear="epsilon", attention="constant"),
    "alphabeta": Rules(linear="alphabeta", alpha=0.5, attention="constant"),
    "zplus": Rules(linear="alphabeta", alpha=1.0, sums=True, attention="constant"),
    "voita": Rules(linear="alphabeta", alpha=0.5, sums=True, attention="constant"),  # their code, since November 2020
    "ratio": Rules(linear="ratio", attention="ratio"),  # their appendix A, as printed: unstable where parts cancel
    "gradient": Rules(others=False),
}

# activation functions written as several operations, such as GPT-2's: taken as one
_ONE_STEP = re.compile("gelu|relu|silu|swish|mish|tanh|sigmoid|softplus|activation", re.IGNORECASE)


@contextmanager
def rules(
    which: str | Rules = "attnlrp", model: nn.Module | None = None, tables: Collection[int] = ()
) -> Iterator[Propagation]:
    """Make gradients of what is computed while the context lasts carry relevance: R(x) = x * gradient.

    ``which``: "attnlrp", "cp", "epsilon", "alphabeta", "zplus", "voita", "ratio", "gradient" (no rule) or your
    own ``Rules``.
    Freeze the weights first (``model.requires_grad_(False)``): a product of two tensors that need gradients is halved.
    ``model``: its activation modules that consist of several operations are then taken as one. ``tables``: ids of
    embedding weights that are no input. What the context yields knows the ``inputs`` that were looked up and the
    ``constants`` that were added, as tensors to ask for the gradient of. Nothing outside the context changes.

    Raises ``ValueError`` for unknown rules and for torch's ``multi_head_attention_forward``, whose inside is hidden.

    >>> import torch
    >>> layer = nn.Linear(2, 1).requires_grad_(False)
    >>> layer.weight[:], layer.bias[:] = torch.tensor([[3.0, 1.0]]), 1.0
    >>> x = torch.tensor([2.0, 4.0], requires_grad=True)
    >>> with rules("cp") as seen:
    ...     y = layer(x)
    >>> g, of_bias = torch.autograd.grad(y.sum(), [x, *seen.constants])
    >>> y.item(), (x * g).tolist(), (seen.constants[0] * of_bias).item()
    (11.0, [6.0, 4.0], 1.0)
    """
    chosen = named(which)
    with ExitStack() as stack:
        if chosen.others and model is not None:
            for module in model.modules():
                if _ONE_STEP.search(type(module).__name__) and not [*module.children(), *module.parameters()]:
                    for handle in _as_one(module):
                        stack.callback(handle.remove)
        yield stack.enter_context(Propagation(chosen, tables))


def named(which: str | Rules) -> Rules:
    """Return the rules of that name, or those given."""
    if isinstance(which, Rules):
        return which
    if which not in NAMED:
        raise ValueError(f"rules is one of {', '.join(NAMED)}, or your own Rules(...); got {which!r}")
    return NAMED[which]


def _as_one(module: nn.Module) -> tuple:
    """Hook an activation module so that R(x) = R(y): its inside runs on numbers that need no gradient."""
    waiting: list[tuple[Tensor, Tensor]] = []

    def before(_module: nn.Module, args: tuple) -> tuple | None:
        if not (args and active(args[0])):
            return None
        waiting.append((args[0], args[0].detach()))
        return (waiting[-1][1], *args[1:])

    def after(_module: nn.Module, args: tuple, out: Tensor) -> Tensor | None:
        if not (waiting and args and args[0] is waiting[-1][1]):
            return None
        x, _ = waiting.pop()
        if out.shape == x.shape:
            return identity(x, out)
        return type(module).forward(module, x, *args[1:])  # it mixes or cuts, so it is no activation function

    return module.register_forward_pre_hook(before), module.register_forward_hook(after)
