"""What all contexts of headtools share: who is changing what of a model, so that everything comes back.

What forces the design:

1. Contexts do not always end in the reverse of their order of entry: two ``ExitStack`` objects, a generator that is
   collected late, two cells of a notebook. A context that put back what it found could put back what another one had
   set. So a value that several contexts may want changed has one account here: the original, and the wishes of all open
   contexts. The value follows from these, and the original comes back with the end of the last wish.
2. Two models may share a configuration, a module or weights: accounts belong to objects, not to models.
3. Hooks and flags belong to all threads at once. Two threads that measure one model would count each other's passes, so
   a second thread that enters a context is refused. Running the model in another thread is not: ``generate`` with a
   streamer does just that, inside whatever context is open.
4. A copy made inside a context would keep its hooks, and nobody would ever take them off; a clean copy would quietly
   be another function than the model it was made from. So copying and pickling are refused while a context is open.
5. Contexts cost nothing while the model runs: nothing here is called between entry and exit, except by a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

STATE = "__getstate__"  # in the __dict__ of a module that a context holds: what copy and pickle ask first
_LOCK = threading.RLock()


class Claim:
    """Which contexts hold an object, and for which thread."""

    def __init__(self, target: object) -> None:
        self.target = target  # kept, so that its id stays its own
        self.thread = threading.current_thread()
        self.contexts: list[str] = []
        self.uncopyable: list[str] = []

    def refuse_copy(self) -> None:
        """Raise ``RuntimeError``, in the place of the state that a copy would be made from."""
        raise RuntimeError(
            f"the model cannot be copied or pickled inside {self.uncopyable[-1]}: what the context changes would stay "
            "in the copy for good. Copy it before or after the context; to keep only the weights: model.state_dict(); "
            "for a copy without some heads: prune(model_copy, heads)"
        )


@dataclass
class _Account:
    owner: object  # kept, so that its id stays its own
    original: Any
    wishes: dict[object, Any] = field(default_factory=dict)  # in order of entry


_CLAIMS: dict[int, Claim] = {}
_ACCOUNTS: dict[tuple[int, str], _Account] = {}


@contextmanager
def claimed(context: str, targets: Iterable[object], copyable: bool = False) -> Iterator[None]:
    """Hold objects (modules, weights, configurations) for this thread while a context lasts; ``context`` is its name.

    Unless ``copyable``, modules among them cannot be copied or pickled meanwhile. Raises ``RuntimeError`` where another
    thread that is alive holds one of them.

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
            _refuse_second_thread(context, _CLAIMS.get(id(target)))
        for target in targets:
            claim = _CLAIMS.setdefault(id(target), Claim(target))
            claim.thread = threading.current_thread()
            claim.contexts.append(context)
            if not copyable:
                claim.uncopyable.append(context)
                if isinstance(target, nn.Module):
                    target.__dict__[STATE] = claim.refuse_copy
    try:
        yield
    finally:
        with _LOCK:
            for target in targets:
                _release(_CLAIMS[id(target)], context, copyable)


def _release(claim: Claim, context: str, copyable: bool) -> None:
    claim.contexts.remove(context)
    if not copyable:
        claim.uncopyable.remove(context)
    if not claim.uncopyable and isinstance(claim.target, nn.Module):
        claim.target.__dict__.pop(STATE, None)
    if not claim.contexts:
        del _CLAIMS[id(claim.target)]


def _refuse_second_thread(context: str, claim: Claim | None) -> None:
    if claim is None or claim.thread is threading.current_thread() or not claim.thread.is_alive():
        return
    raise RuntimeError(
        f"{context} in thread {threading.current_thread().name!r}: {type(claim.target).__name__} is inside "
        f"{claim.contexts[-1]} in thread {claim.thread.name!r}, and each would measure what the other does. Give each "
        "thread a model of its own, copy.deepcopy(model), or let one wait for the other with a threading.Lock"
    )


def open_contexts(modules: Iterable[nn.Module]) -> list[str]:
    """Return the names of the contexts that hold one of some modules, in order of entry.

    >>> layer = nn.Linear(2, 2)
    >>> with claimed("record()", [layer]):
    ...     open_contexts([layer])
    ['record()']
    """
    with _LOCK:
        claims = [_CLAIMS[id(module)] for module in modules if id(module) in _CLAIMS]
        return list(dict.fromkeys(name for claim in claims for name in claim.contexts))


def refuse_inside(model: nn.Module, what: str) -> None:
    """Raise ``RuntimeError`` for something that changes a model for good while a context holds part of it."""
    names = open_contexts(model.modules())
    if names:
        raise RuntimeError(
            f"{what} changes the model for good, and it is inside {names[-1]}, which will put back what it found: end "
            f"the context first, then call {what}"
        )


@contextmanager
def wished(
    owner: object, name: str, wish: Any, read: Callable[[], Any], write: Callable[[Any, list], None]
) -> Iterator[None]:
    """Let a value be what all open contexts together wish, whichever ends first; the original comes back at the end.

    ``owner`` and ``name`` say which value. ``read()`` returns the original, asked for once, by the first context.
    ``write(original, wishes)`` sets the value; without wishes it puts the original back.

    >>> room = {"light": 1}
    >>> def write(original, wishes):
    ...     room["light"] = max(wishes, default=original)
    >>> one, two = (wished(room, "light", wish, lambda: room["light"], write) for wish in (5, 3))
    >>> one.__enter__(), two.__enter__(), one.__exit__(None, None, None), room["light"]
    (None, None, False, 3)
    >>> two.__exit__(None, None, None), room["light"]
    (False, 1)
    """
    place, ticket = (id(owner), name), object()
    with _LOCK:
        if place not in _ACCOUNTS:
            _ACCOUNTS[place] = _Account(owner, read())
        account = _ACCOUNTS[place]
        account.wishes[ticket] = wish
    try:
        with _LOCK:
            write(account.original, list(account.wishes.values()))
        yield
    finally:
        with _LOCK:
            del account.wishes[ticket]
            if not account.wishes:
                del _ACCOUNTS[place]
            write(account.original, list(account.wishes.values()))


@contextmanager
def listed(module: nn.Module, name: str, entry: Any) -> Iterator[None]:
    """Add an entry to the list ``name`` in a module's ``__dict__`` while the context lasts; no empty list is left.

    >>> layer = nn.Identity()
    >>> with listed(layer, "taps", 5):
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


def on_input(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Hook what a projection reads: ``change`` returns what it reads instead, or None for no change.

    The input may be given by position or by name, ``o_proj(x)`` or ``o_proj(input=x)``.

    >>> import torch
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> handle = on_input(layer, lambda x: x * 0)
    >>> layer(input=torch.ones(1)).item()
    0.0
    """

    def hook(_module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        new = change(first_input(args, kwargs))
        return None if new is None else with_first(args, kwargs, new)

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def first_input(args: tuple, kwargs: dict) -> Tensor:
    """Return what a projection was called with, by position or by name.

    >>> first_input((), {"input": 3})
    3
    """
    return args[0] if args else kwargs[_named(kwargs)]


def with_first(args: tuple, kwargs: dict, new: Tensor) -> tuple[tuple, dict]:
    """Return the arguments of a projection with another input.

    >>> with_first((1,), {}, 2), with_first((), {"input": 1}, 2)
    (((2,), {}), ((), {'input': 2}))
    """
    return ((new, *args[1:]), kwargs) if args else (args, kwargs | {_named(kwargs): new})


def _named(kwargs: dict) -> str:
    for name in kwargs:
        return name  # nn.Linear calls it input, Conv1D x, others as they like: it is the first
    raise TypeError("the output projection was called without an input; needed: out(z) or out(input=z)")
