"""Runs of an experiment in parallel, through joblib: on the cores of a machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from joblib import Parallel, delayed

Result = TypeVar("Result")


def parallel_map(function: Callable[..., Result], arguments: Iterable[tuple], jobs: int = 1) -> Iterator[Result]:
    """Yield ``function(*arguments)`` for each tuple, in order, with ``jobs`` processes at a time; -1 uses all cores.

    Inside ``joblib.parallel_config(backend="dask")`` jobs run on that cluster, whose workers must have one thread.
    Folders must then be absolute paths that all machines can access.

    >>> list(parallel_map(pow, [(2, 3), (3, 2)]))
    [8, 9]
    """
    parallel = Parallel(n_jobs=jobs, return_as="generator")
    yield from parallel(delayed(_on_one_thread)(function, *values) for values in arguments)


def _on_one_thread(function: Callable[..., Result], *values: object) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same numbers on every machine: sums depend on the number of threads
    try:
        return function(*values)
    finally:
        torch.set_num_threads(threads)
