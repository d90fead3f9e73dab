"""Open contexts, and the hooks they set: which context holds what, and edits of what an output projection reads.

Every intervention on heads' outputs (gates, ablation, patching) is an edit of z, the input of the output projection:
the one tensor which every attention kernel and every model file computes, and in which the heads lie side by side.

All that an open context changes beside hooks is an entry of one registry, under the object that it belongs to: that a
module is held, functions to call with its maps, the attention function named by a configuration. What is in force
follows from the entries that are open, so contexts may end in any order, and the last one restores the original.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headtools.heads._checks import checked_inputs
from headtools.heads.sites import Site

Edit = Callable[[Tensor], Tensor]  # z (..., head, value_dim) -> the same shape

_HELD, _COPYABLE = "held", "held, and may be copied"
_GETSTATE = "__getstate__"  # copy and pickle call it first; set in the __dict__ of a module that a context holds
_LOCK = threading.RLock()


@dataclass(eq=False)
class _Entry:
    owner: object  # a reference, so that no other object can get its id
    slot: str
    value: Any
    original: Any = None


_OPEN: dict[int, list[_Entry]] = {}  # by the id of their owner, in order of entry


def entries(owner: object, slot: str) -> list:
    """Return what the open contexts entered for an object under the name ``slot``, the oldest first."""
    return [entry.value for entry in _OPEN.get(id(owner), ()) if entry.slot == slot]


@contextmanager
def append_entry(owner: object, slot: str, value: Any) -> Iterator[_Entry]:
    """Keep an entry for an object while the context lasts.

    >>> layer = nn.Identity()
    >>> with append_entry(layer, "taps", 5):
    ...     entries(layer, "taps")
    [5]
    >>> entries(layer, "taps")
    []
    """
    entry = _Entry(owner, slot, value)
    with _LOCK:
        _OPEN.setdefault(id(owner), []).append(entry)
    try:
        yield entry
    finally:
        with _LOCK:
            _OPEN[id(owner)].remove(entry)
            if not _OPEN[id(owner)]:
                del _OPEN[id(owner)]


@contextmanager
def override(
    owner: object, name: str, value: Any, read: Callable[[], Any], write: Callable[[Any, list], None]
) -> Iterator[None]:
    """Override a value while the context lasts; where several contexts do, all count until the last one ends.

    ``owner`` and ``name`` identify what is overridden. ``read()`` returns the original; only the first context calls
    it. ``write(original, values)`` sets what follows from the values of all open contexts, or the original without any.

    >>> lamp = {"brightness": 1}
    >>> def write(original, values):
    ...     lamp["brightness"] = max(values, default=original)
    >>> one, two = (override(lamp, "brightness", value, lambda: lamp["brightness"], write) for value in (5, 3))
    >>> one.__enter__(), two.__enter__(), one.__exit__(None, None, None), lamp["brightness"]
    (None, None, False, 3)
    >>> two.__exit__(None, None, None), lamp["brightness"]
    (False, 1)
    """
    with _LOCK:
        open_before = [entry for entry in _OPEN.get(id(owner), ()) if entry.slot == name]
        original = open_before[0].original if open_before else read()
    try:
        with append_entry(owner, name, value) as entry:
            entry.original = original
            write(original, entries(owner, name))
            yield
    finally:
        write(original, entries(owner, name))


@contextmanager
def claimed(context: str, targets: Iterable[object], copyable: bool = False) -> Iterator[None]:
    """Hold objects (modules, weights, configurations) for this thread while the context named ``context`` lasts.

    Unless ``copyable``, modules among them cannot be copied or pickled until it ends: the copy would keep the hooks for
    ever. Raises ``RuntimeError`` where another living thread holds one of them: each would measure
    what the other does. The model may run in another thread, as ``generate`` with a streamer lets it.

    >>> import copy
    >>> layer = nn.Linear(2, 2)
    >>> with claimed("ablate()", [layer]):
    ...     copy.deepcopy(nn.Sequential(layer))
    Traceback (most recent call last):
    RuntimeError: the model cannot be copied or pickled inside ablate(): ...
    """
    targets, me = list({id(target): target for target in targets}.values()), threading.current_thread()
    with _LOCK:
        for target in targets:
            for other, thread in entries(target, _HELD) + entries(target, _COPYABLE):
                if thread is not me and thread.is_alive():
                    raise RuntimeError(
                        f"{context} in thread {me.name!r}: {type(target).__name__} is inside {other} in thread "
                        f"{thread.name!r}, and each would measure what the other does. Give each thread its own model, "
                        "copy.deepcopy(model), or let one wait for the other with a threading.Lock"
                    )
    try:
        with ExitStack() as stack:
            for target in targets:
                stack.enter_context(append_entry(target, _COPYABLE if copyable else _HELD, (context, me)))
                _allow_copies(target)
            yield
    finally:
        for target in targets:
            _allow_copies(target)


def _allow_copies(target: object) -> None:
    """Let a module be copied if no open context forbids it, else not."""
    holding = entries(target, _HELD)
    if isinstance(target, nn.Module) and holding:
        vars(target)[_GETSTATE] = functools.partial(_refuse_copy, holding[-1][0])
    elif isinstance(target, nn.Module):
        vars(target).pop(_GETSTATE, None)


def _refuse_copy(context: str) -> None:
    raise RuntimeError(
        f"the model cannot be copied or pickled inside {context}: the copy would keep what the context changes. "
        "Copy it before or after the context; to keep only the weights: model.state_dict(); for a copy without some "
        "heads: prune(model_copy, heads)"
    )


def check_no_open_context(model: nn.Module, what: str) -> None:
    """Raise ``RuntimeError`` where ``what`` would change a model permanently while a context holds part of it."""
    for module in model.modules():
        for name, _ in entries(module, _HELD) + entries(module, _COPYABLE):
            raise RuntimeError(
                f"{what} changes the model permanently, and {name} is open, which will restore what it changed: "
                f"end the context first, then call {what}"
            )


@contextmanager
def intervention(model: nn.Module, context: str, sites: Iterable[Site]) -> Iterator[None]:
    """Hold a model and some of its sites while a context lasts, and check the model's inputs.

    ``context`` is the context's name, such as "ablate()", for error messages.
    """
    modules = (module for site in sites for module in (site.module, site.out))
    with claimed(context, [model, *modules]), _uncompiled(), checked_inputs(model):
        yield


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Let compiled code run as plain Python while the context lasts: it would skip hooks set after it was compiled."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # not imported: nothing was compiled
    if dynamo is None:
        try:
            yield
        finally:
            if "torch._dynamo" in sys.modules:  # what was compiled meanwhile contains the hooks
                torch.compiler.reset()
        return

    def write(original: Any, values: list) -> None:
        dynamo._set_stance(dynamo.DynamoStance("force_eager") if values else original)

    with override(dynamo, "stance", None, lambda: dynamo._stance, write):
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
    if not args and not kwargs:
        raise TypeError("the output projection was called without an input; expected out(z) or out(input=z)")
    # nn.Linear calls it input, Conv1D calls it x, custom layers differ; it always comes first
    return args[0] if args else next(iter(kwargs.values()))


def replace_first_input(args: tuple, kwargs: dict, new: Tensor) -> tuple[tuple, dict]:
    """Return the arguments of a projection with another input.

    >>> replace_first_input((1,), {}, 2), replace_first_input((), {"input": 1}, 2)
    (((2,), {}), ((), {'input': 2}))
    """
    return ((new, *args[1:]), kwargs) if args else (args, kwargs | {next(iter(kwargs)): new})
