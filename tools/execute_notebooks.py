"""Run notebooks from a fresh kernel and keep their outputs, the same bytes each time: ``make notebooks``.

    python tools/execute_notebooks.py                      all lessons
    python tools/execute_notebooks.py notebooks/00_*.ipynb some
    python tools/execute_notebooks.py --update ...         numbers that changed are written into the catalogues

A lesson whose numbers are not those that its catalogue expects is not saved: the differences are printed, for review,
and ``--update`` writes them.

What differs from run to run without meaning anything is left out: widget state, time stamps, the Python version, widget
ids. Minutes and memory are measured on the way (see ``measure_notebooks.py``).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
# Lessons are committed as they run where no real model is: another line is printed where one is found.
NO_MODELS = ROOT / "tests" / "no_real_models"
TIMEOUT = 300  # seconds for one cell
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Run:
    """A notebook after a run: its cells with outputs, wall-clock seconds, the kernel's highest memory in megabytes."""

    nb: nbformat.NotebookNode
    seconds: float
    megabytes: float


def lessons(folder: Path = ROOT / "notebooks") -> list[Path]:
    """The lessons in a folder, in order: the notebooks whose name starts with two digits."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def appendices(folder: Path = ROOT / "notebooks") -> list[Path]:
    """The appendices to the lessons, in order."""
    return sorted((folder / "more").glob("[0-9][0-9]_*.ipynb"))


def run(path: Path, log: Path | None = None, models: Path = NO_MODELS) -> Run:
    """Run a notebook in a fresh kernel, in its own folder; an error in a cell is raised (CellExecutionError).

    log: a file to which the kernel appends the numbers that the lesson measures; models: the folder of real models
    """
    nb = nbformat.read(path, as_version=4)
    client = NotebookClient(
        nb,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    peak, over = [0.0], threading.Event()
    watch = threading.Thread(target=_watch, args=(client, peak, over), daemon=True)
    start = time.monotonic()
    # The kernel uses this checkout, whatever else is installed.
    path_first = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # As in tools/lab.sh, which says why: memory is measured as a reader's kernel needs it.
    env = {**os.environ, "PYTHONPATH": path_first, "MALLOC_MMAP_THRESHOLD_": "1000000", "TQDM_DISABLE": "1"}
    env |= {"HEADTOOLS_CACHE": str(models), "HF_HUB_CACHE": str(NO_MODELS)}
    env |= {"HEADTOOLS_MEASURED": str(log)} if log else {}
    with client.setup_kernel(env=env):
        watch.start()
        for place, cell in enumerate(nb.cells):
            client.execute_cell(cell, place)
        seconds = time.monotonic() - start
        over.set()
        watch.join()
    return Run(normalise(nb), seconds, peak[0])


def normalise(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Take out, in place, what changes from run to run and machine to machine."""
    nb.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    count = 0
    for cell in nb.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                count += 1
                output["data"][WIDGET]["model_id"] = f"{count:032x}"
    return nb


def save(nb: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook, whole or not at all."""
    nbformat.validate(nb)
    part = path.with_name(path.name + ".part")
    part.write_text(nbformat.writes(nb).rstrip("\n") + "\n", encoding="utf-8")
    os.replace(part, path)


def main() -> int:
    """Run and save the notebooks named on the command line, or all lessons; 1 when a lesson's numbers are off."""
    from measure_notebooks import remember, tell

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--update", action="store_true", help="write changed numbers into the catalogues")
    options, status = parser.parse_args(), 0
    for path in options.notebooks or [*lessons(), *appendices()]:
        done = as_expected(path, options.update)
        if done is None:
            status = 1
            continue
        save(done.nb, path)
        if path.resolve().parent == ROOT / "notebooks":  # appendices are run and compared, and have no box
            remember(path, done)
        print(f"{path.name}: {done.seconds:.0f} s, {done.megabytes:.0f} MB", file=sys.stderr)
    tell()
    return status


def as_expected(path: Path, update: bool) -> Run | None:
    """Run a notebook whose numbers are as its catalogue expects, or are written there; None where they are not."""
    from expected import differences, measured_in, write

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "measured.jsonl")
        done = run(path, log)
        changed, lines, off = differences(measured_in(log))
    for line in lines:
        print(line, file=sys.stderr)
    if changed and update:
        write(changed)
        return run(path)
    if off:
        print(f"{path.name} is not saved: look at these numbers, then add --update", file=sys.stderr)
    return None if off else done


def _watch(client: NotebookClient, peak: list[float], over: threading.Event) -> None:
    """Keep the highest memory of the kernel in ``peak[0]`` until ``over``."""
    process = psutil.Process(client.km.provisioner.pid)
    while True:
        last = over.wait(0.1)
        try:
            peak[0] = max(peak[0], _megabytes(process))
        except (psutil.Error, OSError):
            return  # the kernel died: the cell's own error says so
        if last:
            return


def _megabytes(process: psutil.Process) -> float:
    """Memory of a process in megabytes: its highest so far where Linux tells that, else what it holds now."""
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        for line in status.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return process.memory_info().rss / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
