"""Layer-wise relevance propagation, operation by operation, on any PyTorch model: ``with rules("attnlrp"):``.

Inside the context every operation runs as it is. What changes is the backward pass: ``torch.autograd.grad`` gives,
instead of the gradient, a g with which x * g is the relevance R(x) of every tensor x that took part (see
``functions``). Nothing is replaced in the model; a ``TorchFunctionMode`` intercepts the operations.

Other projects report that a patent has been applied for on methods of this family; if your use is commercial, look into
that first.

"voita" is the rule of Voita et al.'s code, "ratio" the one that their appendix prints. "voita" shares by sign and holds
attention constant, so that R stays bounded. Under "ratio" the factors of a product share by their size, and R goes on
through softmax. Where terms cancel there is no bound: in the organism's six layers a head's R is 10^16 times the
explained number, and rounding errors alone, in double precision too, exceed that number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from headtools.importance._lrp.functions import identity
from headtools.importance._lrp.operations import Propagation, active
from headtools.importance._lrp.rule_set import Rules, named

# Modules of activation functions, which may consist of several operations, such as GPT-2's: each is one operation.
_ACTIVATION = re.compile("gelu|relu|silu|swish|mish|tanh|sigmoid|softplus|activation", re.IGNORECASE)


@contextmanager
def rules(
    name_or_rules: str | Rules = "attnlrp", model: nn.Module | None = None, tables: Collection[int] = ()
) -> Iterator[Propagation]:
    """Make gradients of what is computed while the context lasts carry relevance: R(x) = x * gradient.

    ``name_or_rules``: "attnlrp", "cp", "epsilon", "alphabeta", "zplus", "voita", "ratio", "gradient" (no rule) or your
    own ``Rules``. Freeze the weights first (``model.requires_grad_(False)``): the relevance of a product is halved
    where both factors require gradients. ``model``: its activation modules of several operations then count as one.
    ``tables``: ids of embedding weights that are not an input. The context yields an object whose ``inputs`` (looked up
    in tables) and ``constants`` (added) are the tensors in which relevance ends. Nothing outside the context changes.

    Raises ``ValueError`` for unknown rules and for torch's ``multi_head_attention_forward``, whose operations are
    hidden.

    >>> import torch
    >>> layer = nn.Linear(2, 1).requires_grad_(False)
    >>> layer.weight[:], layer.bias[:] = torch.tensor([[3.0, 1.0]]), 1.0
    >>> x = torch.tensor([2.0, 4.0], requires_grad=True)
    >>> with rules("cp") as propagation:
    ...     y = layer(x)
    >>> g_x, g_bias = torch.autograd.grad(y.sum(), [x, *propagation.constants])
    >>> y.item(), (x * g_x).tolist(), (propagation.constants[0] * g_bias).item()
    (11.0, [6.0, 4.0], 1.0)
    """
    rule_set = named(name_or_rules)
    with ExitStack() as stack:
        if rule_set.others and model is not None:
            for module in model.modules():
                if _ACTIVATION.search(type(module).__name__) and not [*module.children(), *module.parameters()]:
                    _run_as_one_operation(module, stack)
        yield stack.enter_context(Propagation(rule_set, tables))


def _run_as_one_operation(module: nn.Module, stack: ExitStack) -> None:
    """Let an activation module pass relevance on as R(x) = R(y), until ``stack`` closes: it runs on a detached x."""
    given: list[Tensor] = []  # the x of the call under way

    def before(_module: nn.Module, args: tuple) -> tuple | None:
        given[:] = [x for x in args[:1] if active(x)]
        return (given[0].detach(), *args[1:]) if given else None

    def after(_module: nn.Module, args: tuple, y: Tensor) -> Tensor | None:
        if not given:
            return None
        x = given.pop()
        if y.shape != x.shape:  # no activation function
            return type(module).forward(module, x, *args[1:])
        return identity(x, y)

    stack.callback(module.register_forward_pre_hook(before).remove)
    stack.callback(module.register_forward_hook(after).remove)
