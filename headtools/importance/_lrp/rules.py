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

from torch import Tensor, nn

from headtools.importance._lrp.functions import identity
from headtools.importance._lrp.operations import Propagation, active
from headtools.importance._lrp.rule_set import Rules, named

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
