"""Runs of an experiment side by side, through joblib: on the cores of a machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TypeVar

import torch
from joblib import Parallel, delayed

Result = TypeVar("Result")

# Threads of one process take turns: they share torch's generator, and transformers loads one model at a time.
_TURN = Lock()


def side_by_side(function: Callable[..., Result], arguments: Iterable[tuple], jobs: int = 1) -> Iterator[Result]:
    """Give ``function(*arguments)`` for each tuple, in order, ``jobs`` of them at a time; -1 takes all cores.

    Inside ``joblib.parallel_config(backend="dask")`` or ``"ray"`` runs go to that cluster, one at a time in each
    process, on one thread. Folders must then be absolute paths that all machines see.

    >>> list(side_by_side(pow, [(2, 3), (3, 2)]))
    [8, 9]
    """
    try:
        parallel = Parallel(n_jobs=jobs, return_as="generator")
    except ValueError:  # a pool, as Ray's, hands its results over together
        parallel = Parallel(n_jobs=jobs)
    yield from parallel(delayed(_on_one_thread)(function, *values) for values in arguments)


def _on_one_thread(function: Callable[..., Result], *values: object) -> Result:
    with _TURN:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*values)
        finally:
            torch.set_num_threads(threads)
