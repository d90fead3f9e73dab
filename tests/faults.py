"""A process that dies: at any line of some files, in the middle of a write, or when the disk is full.

Each ``work`` runs in a forked copy of this process, so that what dies is a real process, without ``finally``.
"""

import os
import resource
import signal
import sys
import time


def forked(work, before=lambda: None):
    """Run ``work`` in a forked process and return how it ended: 'done', 'killed' or the name of its exception."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            before()
            work()
            status = 0
        except OSError:
            status = 2
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed"
    return {0: "done", 2: "OSError"}.get(os.WEXITSTATUS(status), "failed")


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
