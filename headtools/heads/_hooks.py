"""Hooks on attention layers: hold a model while an intervention is open, and edit what an output projection reads.

Every intervention on heads' outputs (gates, ablation, patching) is an edit of z, the input of the output projection:
the one tensor which every attention kernel and every model file computes, and in which the heads lie side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headtools.heads._checks import checked_inputs
from headtools.heads._interventions import claimed, override
from headtools.heads.sites import Site

Edit = Callable[[Tensor], Tensor]  # z (..., head, value_dim) -> the same shape


@contextmanager
def intervention(model: nn.Module, context: str, sites: Iterable[Site]) -> Iterator[None]:
    """Hold a model and some of its sites while a context lasts, and check the model's inputs.

    ``context`` is the context's name, such as "ablate()", for error messages. Raises ``RuntimeError`` where another
    thread holds the model; see ``_interventions.py``.
    """
    modules = (module for site in sites for module in (site.module, site.out))
    with claimed(context, [model, *modules]), _guarded_hooks(), checked_inputs(model):
        yield


@contextmanager
def _guarded_hooks() -> Iterator[None]:
    """Make compiled code check for hooks while the context lasts, and discard what was compiled without the check.

    By default torch assumes that a module's hooks never change after compilation. Code compiled for a module without
    hooks then also serves that module once it has hooks, and every other module of the same class, such as the next
    layer: gates or recordings would be skipped silently.
    """
    name = "skip_nnmodule_hook_guards"
    dynamo = sys.modules.get("torch._dynamo")  # not imported: a model that was never compiled does not need it
    if dynamo is None or not hasattr(dynamo.config, name) or torch.compiler.is_compiling():
        yield
        return

    def write(original: bool, values: list[bool]) -> None:
        setattr(dynamo.config, name, False if values else original)

    with override(dynamo.config, name, False, lambda: getattr(dynamo.config, name), write):
        dynamo.reset()  # takes some 0.02 ms where nothing was compiled
        yield


@contextmanager
def edit_outputs(model: nn.Module, context: str, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Let every site's output projection read the edited z while the context lasts."""
    with intervention(model, context, edits), ExitStack() as stack:
        for site, edit in edits.items():
            hook = hook_input(site.out, lambda flat, site=site, edit=edit: site.join(edit(site.split(flat))))
            stack.callback(hook.remove)
        yield


def hook_input(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Hook the input of a projection: ``change`` returns a new input, or None to leave it.

    Model files call projections as ``o_proj(x)`` or ``o_proj(input=x)``; both work.

    >>> import torch
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> handle = hook_input(layer, lambda x: x * 0)
    >>> layer(input=torch.ones(1)).item()
    0.0
    """

    def hook(_module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        new = change(first_input(args, kwargs))
        return None if new is None else replace_first_input(args, kwargs, new)

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def first_input(args: tuple, kwargs: dict) -> Tensor:
    """Return the input that a projection was called with, by position or by name.

    >>> first_input((), {"input": 3})
    3
    """
    return args[0] if args else kwargs[_input_name(kwargs)]


def replace_first_input(args: tuple, kwargs: dict, new: Tensor) -> tuple[tuple, dict]:
    """Return the arguments of a projection with another input.

    >>> replace_first_input((1,), {}, 2), replace_first_input((), {"input": 1}, 2)
    (((2,), {}), ((), {'input': 2}))
    """
    return ((new, *args[1:]), kwargs) if args else (args, kwargs | {_input_name(kwargs): new})


def _input_name(kwargs: dict) -> str:
    for name in kwargs:
        return name  # nn.Linear calls it input, Conv1D calls it x, custom layers differ; it always comes first
    raise TypeError("the output projection was called without an input; expected out(z) or out(input=z)")


@contextmanager
def append_entry(module: nn.Module, name: str, entry: Any) -> Iterator[None]:
    """Append ``entry`` to the list ``name`` in a module's ``__dict__`` while the context lasts; leave no empty list.

    >>> layer = nn.Identity()
    >>> with append_entry(layer, "taps", 5):
    ...     layer.taps
    [5]
    >>> "taps" in vars(layer)
    False
    """
    entries = module.__dict__.setdefault(name, [])
    entries.append(entry)
    try:
        yield
    finally:
        entries.remove(entry)
        if not entries:
            module.__dict__.pop(name, None)
