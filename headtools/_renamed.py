"""Old names of functions and arguments: they work for one more release, with a warning that names the new one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P, R = ParamSpec("P"), TypeVar("R")


def old_name(old: str, new: Callable[P, R]) -> Callable[P, R]:
    """Return a function or class under its old name, with a warning that names the new one.

    >>> total = old_name("total", sum)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     total([1, 2]), str(caught[0].message)
    (3, 'total is now sum: write sum')
    """

    @wraps(new)
    def renamed(*args: P.args, **kwargs: P.kwargs) -> R:
        message = f"{old} is now {new.__name__}: write {new.__name__}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return new(*args, **kwargs)

    return renamed


def old_arguments(**new_names: str | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function also accept arguments by their names in the last release: ``old_arguments(run="checkpoint")``.

    ``quiet`` becomes ``progress``, which has the opposite meaning. An argument whose new name is None is ignored.

    >>> @old_arguments(run="checkpoint")
    ... def measure(checkpoint=None):
    ...     return checkpoint
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     measure(run="folder"), str(caught[0].message)
    ('folder', 'measure(run=...) is now measure(checkpoint=...): write checkpoint=')
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def with_old_names(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got {new}= and its old name {old}=: write {new}= alone")
                value = kwargs.pop(old)
                message = f"{function.__name__}({old}=...) no longer has an effect: leave {old}= out"
                if new is not None:
                    kwargs[new] = not value if old == "quiet" else value
                    message = f"{function.__name__}({old}=...) is now {function.__name__}({new}=...): write {new}="
                warnings.warn(message, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return with_old_names

    return decorate
