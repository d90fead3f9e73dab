"""Runs side by side, on whatever joblib is told to run them."""

import time

import joblib
import pytest

from headtools.organism import scratch, sweep
from headtools.organism.jobs import side_by_side


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
