"""A process that dies: at any line of some files, in the middle of a write, or when the disk is full; or may not write.

Each ``work`` runs in a forked copy of this process, so that what dies is a real process, without ``finally``.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
import time

import torch
from torch import nn


def learner(seed):
    """A layer with its optimizer after one step, other ones for each seed: the least that a training keeps."""
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


def child_of(work, statuses):
    """Fork, run ``work`` there without a word, and return the child, who ends with 0, a status of its error, or 1."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            work()
            status = 0
        except tuple(statuses) as error:
            status = next(found for kind, found in statuses.items() if isinstance(error, kind))
        finally:
            os._exit(status)
    return child


def forked(work, before=lambda: None):
    """Run ``work`` in a forked process and return how it ended: 'done', 'killed' or the name of its exception."""
    status = os.waitpid(child_of(lambda: (before(), work()), {OSError: 2}), 0)[1]
    if os.WIFSIGNALED(status):
        return "killed"
    return {0: "done", 2: "OSError"}.get(os.WEXITSTATUS(status), "failed")


def told(work, before=lambda: None):
    """Run ``work`` in a forked process and return what it raised, 'OSError: why', or '' where it came to its end."""
    read, write = os.pipe()

    def telling():
        try:
            before()
            work()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())

    ended = forked(telling)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        return pipe.read() if ended == "done" else ended


def without_power():
    """What to call first: root gives up to write where permissions forbid it (its own they are, so it can still read).

    Of Linux: capset(2) with empty sets. Who is not root has no such power.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)):
            raise RuntimeError(f"capset: {os.strerror(ctypes.get_errno())}")


def together(*works):
    """Run all ``works`` at the same time, each in a forked process; return the children, for ``over``."""
    return [child_of(work, {FileExistsError: 3}) for work in works]


def over(children, ends):
    """Note in ``ends``, {child: exit status}, which children have ended; whether all have."""
    for child in set(children) - ends.keys():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            ends[child] = os.waitstatus_to_exitcode(status)
    return len(ends) == len(children)


def killer(files, number):
    """What to call first: kill -9 before the line that is number ``number`` of those run in these files."""
    files, left = set(files), [number]

    def line(frame, event, argument):
        if event == "line":
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame, event, argument):
        return line if frame.f_code.co_filename in files else None

    return lambda: sys.settrace(call)


def lines_run(work, files):
    """How many lines of these files ``work`` runs."""
    read, write = os.pipe()

    def before():
        count, inside = [0], set(files)

        def line(frame, event, argument):
            count[0] += event == "line"
            return line

        sys.settrace(lambda frame, event, argument: line if frame.f_code.co_filename in inside else None)
        before.count = count

    def counted():
        work()
        sys.settrace(None)
        os.write(write, str(before.count[0]).encode())

    ended = forked(counted, before)
    os.close(write)
    with os.fdopen(read) as told:
        number = told.read()
    assert ended == "done", f"without a fault: {ended}"
    return int(number)


def full_disk(size, kill):
    """What to call first: no file grows beyond ``size`` bytes; who tries is killed, or gets an OSError."""

    def before():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return before


def killed_after(work, seconds):
    """Run ``work`` in a forked process and kill it (kill -9) after some time; whether it had ended before."""
    child = os.fork()
    if child == 0:
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            work()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return not os.WIFSIGNALED(os.waitpid(child, 0)[1])
