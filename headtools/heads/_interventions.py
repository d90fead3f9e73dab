"""Bookkeeping shared by all context managers: which of them holds what, and which values must be restored.

Requirements:

1. Contexts do not always end in the reverse of their order of entry: two ``ExitStack`` objects, a generator that is
   garbage-collected late, two cells of a notebook. A context that restored the value it found might restore another
   context's value. So a value that several contexts may override has one record here: the original, and the values of
   all open contexts. The current value is computed from these; the end of the last context restores the original.
2. Two models may share a configuration, a module or weights: records belong to objects, not to models.
3. Hooks and flags act in all threads at once. Two threads that measure one model would count each other's forward
   passes, so a second thread that enters a context is refused. Running the model in another thread is allowed:
   ``generate`` with a streamer does just that, inside whatever context is open.
4. A copy made inside a context would keep its hooks, and nothing would ever remove them; a copy without them would
   silently compute something other than the model it was made from. So a model cannot be copied or pickled while a
   context is open.
5. An open context adds no cost to a forward pass: nothing here runs between entry and exit, except for a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

_GETSTATE = "__getstate__"  # copy and pickle call it first; set in the __dict__ of a module that a context holds
_LOCK = threading.RLock()


@dataclass
class _Claim:
    """Which contexts hold an object, and for which thread."""

    target: object  # a reference, so that no other object can get its id
    thread: threading.Thread | None = None
    contexts: list[str] = field(default_factory=list)
    uncopyable: list[str] = field(default_factory=list)

    def reject_copy(self) -> None:
        """Raise ``RuntimeError`` where copy and pickle would read the module's state."""
        raise RuntimeError(
            f"the model cannot be copied or pickled inside {self.uncopyable[-1]}: the copy would keep what the context "
            "changes. Copy it before or after the context; to keep only the weights: model.state_dict(); "
            "for a copy without some heads: prune(model_copy, heads)"
        )


@dataclass
class _Overrides:
    owner: object  # a reference, so that no other object can get its id
    original: Any
    values: dict[object, Any] = field(default_factory=dict)  # one per open context, in order of entry


_CLAIMS: dict[int, _Claim] = {}
_OVERRIDES: dict[tuple[int, str], _Overrides] = {}


@contextmanager
def claimed(context: str, targets: Iterable[object], copyable: bool = False) -> Iterator[None]:
    """Hold objects (modules, weights, configurations) for this thread while the context named ``context`` lasts.

    Unless ``copyable``, modules among them cannot be copied or pickled until it ends. Raises ``RuntimeError`` where
    another living thread holds one of them.

    >>> import copy
    >>> layer = nn.Linear(2, 2)
    >>> with claimed("ablate()", [layer]):
    ...     copy.deepcopy(nn.Sequential(layer))
    Traceback (most recent call last):
    RuntimeError: the model cannot be copied or pickled inside ablate(): ...
    """
    targets = list({id(target): target for target in targets}.values())
    with _LOCK:
        for target in targets:
            _check_thread(context, _CLAIMS.get(id(target)))
        for target in targets:
            claim = _CLAIMS.setdefault(id(target), _Claim(target))
            claim.thread = threading.current_thread()
            claim.contexts.append(context)
            if not copyable:
                claim.uncopyable.append(context)
                if isinstance(target, nn.Module):
                    target.__dict__[_GETSTATE] = claim.reject_copy
    try:
        yield
    finally:
        with _LOCK:
            for target in targets:
                claim = _CLAIMS[id(target)]
                claim.contexts.remove(context)
                if not copyable:
                    claim.uncopyable.remove(context)
                if not claim.uncopyable and isinstance(target, nn.Module):
                    target.__dict__.pop(_GETSTATE, None)
                if not claim.contexts:
                    del _CLAIMS[id(target)]


def _check_thread(context: str, claim: _Claim | None) -> None:
    if claim is None or claim.thread is threading.current_thread() or not claim.thread.is_alive():
        return
    raise RuntimeError(
        f"{context} in thread {threading.current_thread().name!r}: {type(claim.target).__name__} is inside "
        f"{claim.contexts[-1]} in thread {claim.thread.name!r}, and each would measure what the other does. Give each "
        "thread its own model, copy.deepcopy(model), or let one wait for the other with a threading.Lock"
    )


def check_no_open_context(model: nn.Module, what: str) -> None:
    """Raise ``RuntimeError`` where ``what`` would change a model permanently while a context holds part of it."""
    with _LOCK:
        claims = [_CLAIMS[id(module)] for module in model.modules() if id(module) in _CLAIMS]
    names = [name for claim in claims for name in claim.contexts]
    if names:
        raise RuntimeError(
            f"{what} changes the model permanently, and {names[-1]} is open, which will restore what it changed: "
            f"end the context first, then call {what}"
        )


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
    key, context = (id(owner), name), object()
    with _LOCK:
        if key not in _OVERRIDES:
            _OVERRIDES[key] = _Overrides(owner, read())
        overrides = _OVERRIDES[key]
        overrides.values[context] = value
    try:
        with _LOCK:
            write(overrides.original, list(overrides.values.values()))
        yield
    finally:
        with _LOCK:
            del overrides.values[context]
            if not overrides.values:
                del _OVERRIDES[key]
            write(overrides.original, list(overrides.values.values()))
