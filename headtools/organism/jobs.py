"""Runs of an experiment side by side, through joblib: on the cores of a machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TypeVar

R = TypeVar("R")

# Runs in threads of one process take turns: they would share torch's dice, and transformers loads one model at a time.
TURN = Lock()


def side_by_side(function: Callable[..., R], given: Iterable[tuple], jobs: int = 1) -> Iterator[R]:
    """Give ``function(*some)`` for each ``some`` in ``given``, in their order, ``jobs`` of them at a time.

    ``jobs=-1`` takes all there is. Inside ``joblib.parallel_config(backend="dask")``, or ``"ray"`` after
    ``ray.util.joblib.register_ray()``, runs go to that cluster: one at a time in each process, on one thread. Whatever
    folder they write into must be one that all its machines see under the same path, which is why a path that is given
    must be a whole one. Results come as soon as they and those before them are there, with Ray all at the end.

    >>> list(side_by_side(pow, [(2, 3), (3, 2)]))
    [8, 9]
    """
    from joblib import Parallel, delayed

    try:
        parallel = Parallel(n_jobs=jobs, return_as="generator")
    except ValueError:  # a pool, as Ray's, hands its results over together
        parallel = Parallel(n_jobs=jobs)
    yield from parallel(delayed(in_turn)(function, *some) for some in given)


def in_turn(function: Callable[..., R], *some: object) -> R:
    """Give ``function(*some)``, on one thread of torch's, when no other run in this process is under way.

    >>> in_turn(pow, 2, 3)
    8
    """
    import torch

    with TURN:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*some)
        finally:
            torch.set_num_threads(threads)
