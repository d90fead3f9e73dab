"""Runs side by side, on whatever joblib is told to run them."""

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import pytest
import torch
from joblib.parallel import ParallelBackendBase

from headtools.organism import scratch, sweep
from headtools.organism.jobs import side_by_side

ROOT = Path(__file__).parents[2]
WORKER = """
import pickle, sys
result = pickle.load(sys.stdin.buffer)()
sys.stdout.buffer.write(pickle.dumps(result))
"""


class Elsewhere(ParallelBackendBase):
    """A cluster of the least kind: runs go, as bytes, to a new process that starts in another folder."""

    supports_retrieve_callback = True
    sent = 0

    def __init__(self, folder=None, **options):
        super().__init__(**options)
        self.folder = folder

    def effective_n_jobs(self, n_jobs):
        return 2

    def start_call(self):
        self.pool = ThreadPoolExecutor(2)

    def stop_call(self):
        self.pool.shutdown()

    def submit(self, func, callback=None):
        type(self).sent += 1
        future = self.pool.submit(self.run, pickle.dumps(func))
        future.add_done_callback(callback)
        return future

    apply_async = submit  # its name before joblib 1.5

    def run(self, func):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
        command = [sys.executable, "-c", WORKER]
        done = subprocess.run(command, cwd=self.folder, env=environment, input=func, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        return pickle.loads(done.stdout)

    def retrieve_result_callback(self, out):
        return out.result()


@pytest.fixture
def elsewhere(tmp_path):
    """The folder in which the workers of the back-end start."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    joblib.register_parallel_backend("elsewhere", Elsewhere)
    Elsewhere.sent = 0
    with joblib.parallel_config(backend="elsewhere", folder=str(folder)):
        yield folder
    del joblib.parallel.BACKENDS["elsewhere"]


def slow_first(number: int) -> int:
    time.sleep(0.2 if number == 0 else 0)
    return number * number


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])  # results one by one, and all together as Ray's
def test_results_come_in_order_from_any_backend(backend):
    with joblib.parallel_config(backend=backend):
        assert list(side_by_side(slow_first, [(n,) for n in range(4)], jobs=2)) == [0, 1, 4, 9]
    assert list(side_by_side(slow_first, [(n,) for n in range(4)])) == [0, 1, 4, 9]


@pytest.mark.parametrize("command", [sweep, scratch])
def test_the_commands_hand_their_runs_to_joblib(command, monkeypatch, tmp_path):
    asked = []

    def seen(function, given, jobs):
        asked.append((function, len(list(given)), jobs))
        raise StopAsyncIteration

    monkeypatch.setattr(command, "side_by_side", seen)
    with pytest.raises(StopAsyncIteration):
        command.main(["--seed", "0", "1", "--penalty", "0.05", "--jobs", "3", "--runs", str(tmp_path)])
    wanted = (sweep.make, 4, 3) if command is sweep else (scratch.one, 2, 3)
    assert asked == [wanted]


def test_a_sweep_on_a_cluster_is_that_of_one_process(elsewhere, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--steps", "1", "--limit", "2", "--over", "encoder", "--penalty", "0.05", "--seed", "1"]
    sweep.main([*words, "--runs", "there", "--file", str(tmp_path / "there.json")])
    assert Elsewhere.sent == 1
    assert len(list((tmp_path / "there").iterdir())) == 1, "the folder is the one named where the command was started"
    assert not list(elsewhere.iterdir())
    with joblib.parallel_config(backend="sequential"):
        sweep.main([*words, "--runs", "here", "--file", str(tmp_path / "here.json")])
    assert Elsewhere.sent == 1
    there, here = (sweep.sweep(tmp_path / file)[0] for file in ("there.json", "here.json"))
    assert there | {"seconds": 0} == here | {"seconds": 0}


def test_runs_from_scratch_can_be_sent(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scratch, "side_by_side", lambda function, given, jobs: sent.extend([function, *given]) or ())
    sent = []
    scratch.main(["--penalty", "0.05", "--runs", "runs", "--jobs", "2", "--file", str(tmp_path / "none.json")])
    function, (run, folder, recipe, *rest) = pickle.loads(pickle.dumps(sent))
    assert (function, recipe.steps, rest) == (scratch.one, 3_000, [500, True])
    assert run["penalty"] == 0.05
    assert folder == tmp_path.resolve() / "runs" / "encoder-0.05-0-steps3000-seed1"


running = 0


def alone(number: int) -> tuple[int, int, int]:
    global running
    running += 1
    time.sleep(0.02)
    together, running = running, running - 1
    return number, together, torch.get_num_threads()


def test_threads_of_one_process_take_turns():
    """As those of a worker of Dask: they would share torch's dice."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with joblib.parallel_config(backend="threading"):
            assert list(side_by_side(alone, [(n,) for n in range(6)], jobs=3)) == [(n, 1, 1) for n in range(6)]
        assert list(side_by_side(alone, [(7,)])) == [(7, 1, 1)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_that_fails_lets_the_next_begin():
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(divmod, [(1, 0)]))
    assert list(side_by_side(divmod, [(7, 2)])) == [(3, 1)]
