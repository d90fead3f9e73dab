"""Open contexts, and the hooks they set: which context holds what, and edits of what an output projection reads.

Every intervention on outputs edits z, the input of the output projection, which every kernel computes. All else that an
open context changes is an entry of one registry, under the object that it belongs to. What is in force follows from the
entries that are open, so contexts may end in any order, and the last one restores the original.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, _GeneratorContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headtools.heads._checks import checked_inputs
from headtools.heads.sites import Site


class _Unused(_GeneratorContextManager):
    """A context that warns when it goes without ever having been entered: its call alone changes nothing."""

    entered = False

    def __enter__(self) -> Any:
        self.entered = True
        return super().__enter__()

    def __del__(self) -> None:
        if not self.entered and hasattr(self, "func") and not sys.is_finalizing():  # it was called correctly
            name = self.func.__name__
            message = f"{name}(...) changes nothing until it is entered: write with {name}(...): model(**batch)"
            warnings.warn(message, stacklevel=2)


def context(function: Callable[..., Iterator]) -> Callable[..., AbstractContextManager]:
    """Make a generator a context manager, as ``contextlib.contextmanager`` does, that warns where ``with`` is missing.

    >>> @context
    ... def quiet():
    ...     yield
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = quiet() and None
    >>> print(caught[0].message)
    quiet(...) changes nothing until it is entered: write with quiet(...): model(**batch)
    """

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> _Unused:
        return _Unused(function, args, kwargs)

    return make


Edit = Callable[[Tensor], Tensor]  # z (..., head, value_dim) -> the same shape

# {(id of an object, slot): {token of a context: its value}}, in order of entry. An open context keeps the object alive,
# so that no other gets its id.
_OPEN: dict[tuple[int, str], dict[object, Any]] = {}
_HELD = "held"  # (name of the context, its thread, whether the object may be copied)
_GETSTATE = "__getstate__"  # copy and pickle call it first; set in the __dict__ of a module that a context holds
_LOCK = threading.RLock()


def entries(owner: object, slot: str) -> list:
    """Return what the open contexts entered for an object under the name ``slot``, the oldest first."""
    return list(_OPEN.get((id(owner), slot), {}).values())


@contextmanager
def append_entry(owner: object, slot: str, value: Any) -> Iterator[None]:
    """Keep an entry for an object while the context lasts.

    >>> layer = nn.Identity()
    >>> with append_entry(layer, "taps", 5):
    ...     entries(layer, "taps")
    [5]
    >>> entries(layer, "taps")
    []
    """
    key, token = (id(owner), slot), object()
    with _LOCK:
        _OPEN.setdefault(key, {})[token] = value
    try:
        yield
    finally:
        with _LOCK:
            del _OPEN[key][token]
            if not _OPEN[key]:
                del _OPEN[key]


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
    known = entries(owner, f"{name}, original")
    original = known[0] if known else read()
    try:
        with append_entry(owner, f"{name}, original", original), append_entry(owner, name, value):
            write(original, entries(owner, name))
            yield
    finally:
        write(original, entries(owner, name))


@contextmanager
def claimed(context: str, targets: Iterable[object], copyable: bool = False) -> Iterator[None]:
    """Hold objects (modules, weights, configurations) for this thread while the context named ``context`` lasts.

    Unless ``copyable``, modules among them cannot be copied or pickled until it ends: the copy would keep the hooks for
    ever. Raises ``RuntimeError`` where another living thread holds one of them: each would measure what the other does.
    The model may run in another thread, as ``generate`` with a streamer lets it.

    >>> import copy
    >>> layer = nn.Linear(2, 2)
    >>> with claimed("ablate()", [layer]):
    ...     copy.deepcopy(nn.Sequential(layer))
    Traceback (most recent call last):
    RuntimeError: the model cannot be copied or pickled inside ablate(): ...
    """
    targets, me = list(targets), threading.current_thread()
    with ExitStack() as stack:
        with _LOCK:
            for target in targets:
                for other, thread, _ in entries(target, _HELD):
                    if thread is not me and thread.is_alive():
                        raise RuntimeError(
                            f"{context} in thread {me.name!r}: {type(target).__name__} is inside {other} in thread "
                            f"{thread.name!r}, and each would measure what the other does. Give each thread its own "
                            "model, copy.deepcopy(model), or let one wait for the other with a threading.Lock"
                        )
            for target in targets:
                stack.callback(_set_copyable, target)  # called after the entry is gone
                stack.enter_context(append_entry(target, _HELD, (context, me, copyable)))
                _set_copyable(target)
        yield


def is_held(target: object) -> bool:
    """Whether a context holds this object now."""
    return bool(entries(target, _HELD))


def _set_copyable(target: object) -> None:
    """Let a module be copied where no open context forbids it."""
    if isinstance(target, nn.Module):
        vars(target).pop(_GETSTATE, None)
        for context, _, copyable in entries(target, _HELD):
            if not copyable:
                vars(target)[_GETSTATE] = functools.partial(_refuse_copy, context)


def _refuse_copy(context: str) -> None:
    raise RuntimeError(
        f"the model cannot be copied or pickled inside {context}: the copy would keep what the context changes. "
        "Copy it before or after the context; to keep only the weights: model.state_dict(); for a copy without some "
        "heads: prune(model_copy, heads)"
    )


def check_no_open_context(model: nn.Module, what: str) -> None:
    """Raise ``RuntimeError`` where ``what`` would change a model permanently while a context holds part of it."""
    for module in model.modules():
        for name, *_ in entries(module, _HELD):
            raise RuntimeError(
                f"{what} changes the model permanently, and {name} is open, which will restore what it changed: "
                f"end the context first, then call {what}"
            )


@contextmanager
def intervention(model: nn.Module, context: str, sites: Iterable[Site]) -> Iterator[None]:
    """Hold a model and some of its sites while a context lasts, and check the model's inputs.

    ``context`` is the context's name, such as "ablate()", for error messages.
    """
    targets: list[nn.Module] = [model]
    for site in sites:
        targets += (site.module, site.out)
    with claimed(context, targets), _uncompiled(), checked_inputs(model):
        yield


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off while the context lasts; then each module returns to the mode it had.

    >>> layer = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with without_dropout(layer):
    ...     [module.training for module in layer]
    [False, False]
    >>> [module.training for module in layer]
    [True, False]
    """
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


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

    with override(dynamo, "stance", None, functools.partial(getattr, dynamo, "_stance"), write):
        yield


@contextmanager
def edit_outputs(model: nn.Module, context: str, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Let every site's output projection read the edited z while the context lasts."""
    with intervention(model, context, edits), ExitStack() as stack:
        for site, edit in edits.items():
            hook = hook_input(site.out, lambda flat, site=site, edit=edit: site.join(edit(site.split(flat))))
            stack.callback(hook.remove)
        yield


def recomputing() -> bool:
    """Tell whether a backward pass is running: gradient checkpointing then runs layers again."""
    return torch._C._current_graph_task_id() != -1


def once_for_each_run(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes something anew for each run of a layer, and the same where a run is repeated.

    A backward pass repeats the runs of a layer last first. What they were given is kept for the latest 64 of them.
    """
    given: deque = deque(maxlen=64)

    def anew_or_again(*arguments: Any) -> Any:
        if recomputing() and given:
            return given.pop()
        given.append(make(*arguments))
        return given[-1]

    return anew_or_again


def hook_input(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Hook the input of a projection: ``change`` returns a new input, or None to leave it.

    Model files call projections as ``o_proj(x)`` or ``o_proj(input=x)``; both work.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> handle = hook_input(layer, lambda x: x * 0)
    >>> layer(input=torch.ones(1)).item()
    0.0
    """

    def hook(_module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if not args and not kwargs:
            raise TypeError("the output projection was called without an input; expected out(z) or out(input=z)")
        # nn.Linear calls it input, Conv1D calls it x, custom layers differ; it always comes first
        name = None if args else next(iter(kwargs))
        new = change(args[0] if args else kwargs[name])
        if new is None:
            return None
        return ((new, *args[1:]), kwargs) if args else (args, kwargs | {name: new})

    return module.register_forward_pre_hook(hook, with_kwargs=True)
