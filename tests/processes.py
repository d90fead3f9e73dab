"""The same function in several processes that know of each other, as a launcher would start them."""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE = 120  # seconds, until a process that does not end is taken for stuck


def needs_forks() -> None:
    """Skip a test where processes cannot be copied, or where accelerate is not installed."""
    pytest.importorskip("accelerate")
    if not sys.platform.startswith("linux"):
        pytest.skip("processes are copied, which is safe on Linux only")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def start(count: int, function: Callable[[], Any]) -> list[tuple]:
    """Start `function()` in `count` copies of this process, torch and all: [(process, pipe with its result)]."""
    copies, port, started = multiprocessing.get_context("fork"), str(free_port()), []

    def child(index: int, pipe: Any) -> None:
        environment = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {name: str(value) for name, value in environment.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
        try:
            pipe.send((function(), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        finally:
            pipe.close()
            os._exit(0)  # nothing of the tester's own is torn down twice

    for index in range(count):
        here, there = copies.Pipe()
        process = copies.Process(target=child, args=(index, there))
        process.start()
        there.close()
        started.append((process, here))
    return started


def ended(started: list[tuple]) -> list[tuple[Any, str | None]]:
    """Wait for processes and return, of each, (what it returned, None) or (None, how it failed)."""
    results = []
    try:
        for process, pipe in started:
            if not pipe.poll(PATIENCE):
                raise TimeoutError(f"process {len(results)} of {len(started)} did not end")
            try:
                results.append(pipe.recv())
            except EOFError:
                process.join()
                results.append((None, f"ended with {process.exitcode}"))
    finally:
        for process, _ in started:
            if len(results) < len(started):
                process.kill()
            process.join()
    return results


def together(count: int, function: Callable[[], Any]) -> list:
    """What `function()` returns in each of `count` processes; fails with the message of one that fails."""
    found = ended(start(count, function))
    assert all(error is None for _, error in found), "\n".join(error for _, error in found if error)
    return [result for result, _ in found]
