"""Kernels that start in no time: one process imports torch and the model once, and every kernel is a copy of it.

Grading starts one kernel a submission, and most of its seconds would go into imports. ``started(folder)`` keeps such a
process while it lasts and writes a kernel named python3 into ``folder`` for Jupyter to find. Its program is this file:
it asks the process for a copy, and stands in for it: it ends when the copy ends, hands interrupts on, and takes it
along when it is killed. Needs fork and Unix sockets, so Linux.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def started(folder: Path) -> Iterator[dict[str, str]]:
    """Keep the process running; gives what the environment of Jupyter needs."""
    address = str(folder / "warm")
    spec = {
        "argv": [sys.executable, "-S", "-E", __file__, "stand-in", address, "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "interrupt_mode": "signal",
    }
    kernel = folder / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps(spec))
    server = subprocess.Popen([sys.executable, __file__, "server", address], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 600
        while not Path(address).exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the process behind the kernels does not start: {server.poll()}")
            time.sleep(0.1)
        yield {"JUPYTER_PATH": str(folder)}
    finally:
        server.kill()
        server.wait()


def serve(address: str) -> None:
    """Import everything, then make a copy of this process for each who asks."""
    import ipykernel.kernelapp
    import torch

    import headtools as ht
    from headtools.organism.batches import batches

    model, _ = ht.load()
    with torch.no_grad():  # nothing backward: threads that it starts do not survive a copy
        model(**batches(ht.corpus("organism", limit=1))[0])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that ended are forgotten
    door = socket.socket(socket.AF_UNIX)
    door.bind(address + ".part")
    door.listen()
    os.rename(address + ".part", address)  # who sees the address is answered
    while True:
        line, _ = door.accept()
        asked = json.loads(line.recv(100_000))
        if os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.chdir(asked["folder"])
            be_kernel(line, asked["arguments"], ipykernel.kernelapp.launch_new_instance)
        line.close()


def be_kernel(line: socket.socket, arguments: list[str], launch) -> None:
    """Run a kernel in this copy until it ends, or until its stand-in does."""
    import threading

    def watch() -> None:
        line.recv(1)  # returns when the stand-in is gone
        os._exit(1)

    line.sendall(str(os.getpid()).encode())
    threading.Thread(target=watch, daemon=True).start()
    try:
        launch(argv=arguments)
    finally:
        os._exit(0)


def stand_in(address: str, arguments: list[str]) -> None:
    """Be what Jupyter sees as the kernel's process."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    line.sendall(json.dumps({"folder": os.getcwd(), "arguments": arguments}).encode())
    copy = int(line.recv(20))
    signal.signal(signal.SIGINT, lambda *_: os.kill(copy, signal.SIGINT))
    line.recv(1)  # returns when the copy is gone


if __name__ == "__main__":
    stand_in(sys.argv[2], sys.argv[3:]) if sys.argv[1] == "stand-in" else serve(sys.argv[2])
