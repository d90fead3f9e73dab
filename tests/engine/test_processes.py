"""Who measures what: every batch once, the same result everywhere, and nothing asked of anybody without a launcher."""

import sys
from datetime import timedelta

import pytest
import torch
from processes import ended, needs_forks, start, together

from headtools._engine.processes import OtherProcessError, Process, current_process, launched_count, sharded
from headtools._engine.run import run
from headtools._engine.store import Store

MODEL = torch.nn.Linear(2, 2)
BATCHES = [{"x": torch.full((3,), float(number))} for number in range(5)]


class Sums:
    """The sum of each batch, and which batches were measured here."""

    def __init__(self):
        self.settings, self.measured = {}, []

    def per_batch(self, batch):
        self.measured.append(int(batch["x"][0]))
        return {"sum": batch["x"].sum()[None]}

    def finish(self, parts):
        return [part["sum"].item() for part in parts]


def test_without_a_launcher_nothing_happens(monkeypatch):
    for name in ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert launched_count() == 0
    with sharded() as process:
        assert (process.index, process.count, process.main, process.device.type) == (0, 1, True, "cpu")
        assert process.gather(lambda: 3) == [3]
        process.assert_same("this", "batches")
    assert current_process().count == 1


def test_three_processes_share_the_batches_and_all_get_the_result(tmp_path):
    needs_forks()

    def inside():
        with sharded() as process:
            measure = Sums()
            return run(measure, MODEL, BATCHES), measure.measured, process.main, current_process().count
        return None

    results = together(3, inside)
    assert [found for found, *_ in results] == [[0, 3, 6, 9, 12]] * 3
    assert sorted(number for _, measured, *_ in results for number in measured) == [0, 1, 2, 3, 4]
    assert [main for _, _, main, _ in results] == [True, False, False]
    assert current_process().count == 1


def test_what_one_process_has_finished_two_go_on_with(tmp_path):
    needs_forks()
    run(Sums(), MODEL, BATCHES, checkpoint=tmp_path)
    for number in (1, 2, 3):
        (tmp_path / f"{number:06d}.safetensors").unlink()

    def inside():
        with sharded():
            measure = Sums()
            return run(measure, MODEL, BATCHES, checkpoint=tmp_path), measure.measured
        return None

    (first, mine), (second, theirs) = together(2, inside)
    assert first == second == [0, 3, 6, 9, 12]
    assert sorted(mine[1:] + theirs) == [1, 2, 3], "shared evenly; the main one has compared batch 0"
    assert mine[0] == 0


def test_a_process_that_fails_ends_the_others():
    needs_forks()

    class Fails(Sums):
        def per_batch(self, batch):
            if batch["x"][0] == 3:
                raise ValueError("odd")
            return super().per_batch(batch)

    def inside():
        with sharded():
            run(Fails(), MODEL, BATCHES)

    (_, first), (_, second) = ended(start(2, inside))
    assert "process 1 of 2 failed: ValueError: odd" in first
    assert second.startswith("ValueError: odd")


def test_other_batches_or_models_are_refused_everywhere():
    needs_forks()

    def inside():
        with sharded() as process:
            run(Sums(), MODEL, BATCHES[: 4 + process.index])

    assert all("the 2 processes have different models or batches" in error for _, error in ended(start(2, inside)))


def test_a_folder_that_not_all_see_is_told(tmp_path, monkeypatch):
    store = Store(tmp_path / "here", {})
    store.finished = {0}
    with pytest.raises(FileNotFoundError, match="a folder that all machines share"):
        store.get(0)


class Others:
    """Stands for accelerate's functions in process 0 of two, the other of which gives `theirs`."""

    def __init__(self, *theirs):
        self.theirs = list(theirs)

    def gather_object(self, mine):
        return [*mine, *self.theirs]


@pytest.fixture
def others(monkeypatch):
    utils = pytest.importorskip("accelerate.utils")
    return lambda *theirs: monkeypatch.setattr(utils, "gather_object", Others(*theirs).gather_object)


def test_work_of_all_processes(others):
    others(("theirs", None))
    assert Process(0, 2).gather(lambda: "mine") == ["mine", "theirs"]
    others((None, None))
    assert Process(0, 2).gather(lambda: None) == [None, None]


def test_a_failure_anywhere_is_an_error_everywhere(others):
    others((None, "ValueError: odd"))
    with pytest.raises(OtherProcessError, match=r"^process 1 of 2 failed: ValueError: odd$"):
        Process(0, 2).gather(lambda: 1)
    messages = []

    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):  # its own, with its own trace
        Process(0, 2).gather(fails)
    others((1, None))
    with pytest.raises(KeyError, match="mine"):
        Process(0, 2).gather(fails)
    with pytest.raises(ZeroDivisionError):  # alone, too
        Process().gather(lambda: messages.append(1) or 1 / 0)
    assert messages == [1]


def test_processes_agree_or_all_of_them_are_told(others):
    others(("same", None))
    Process(0, 2).assert_same("same", "batches")
    with pytest.raises(ValueError, match=r"the 2 processes have different batches.*before batches are made"):
        Process(0, 2).assert_same("other", "batches")


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 0),
        ({"WORLD_SIZE": "3"}, 3),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, 1),
        ({"WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no"}, 2),
    ],
)
def test_how_many_a_launcher_started(monkeypatch, variables, count):
    for name in ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_count() == count


class State:
    """Stands for accelerate's PartialState: keeps what was asked, has what it was told to have."""

    def __init__(self, monkeypatch, count, device="cpu"):
        accelerate = pytest.importorskip("accelerate")
        self.num_processes, self.process_index, self.device = count, 1, torch.device(device)
        self.asked, self.waited = None, 0
        monkeypatch.setattr(accelerate, "PartialState", self.made)
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)

    def made(self, **requested):
        self.asked = requested
        return self

    def wait_for_everyone(self):
        self.waited += 1


@pytest.mark.parametrize(
    ("accelerator", "use_cpu", "cpu"),
    [
        (None, None, True),
        (None, "false", True),
        ("mps", None, True),
        ("cuda", None, False),
        ("cuda", "false", False),
        ("cuda", "0", False),
        ("cuda", "true", True),
        ("cuda", "True", True),
        ("cuda", "1", True),
        ("cuda", "yes", True),
        ("xpu", None, False),
    ],
)
def test_where_processes_work(monkeypatch, accelerator, use_cpu, cpu):
    state = State(monkeypatch, 2, "cpu" if cpu else f"{accelerator}:1")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator and torch.device(accelerator))
    if use_cpu is not None:
        monkeypatch.setenv("ACCELERATE_USE_CPU", use_cpu)
    with sharded() as process:
        assert (process.index, process.count) == (1, 2)
        assert process.device == torch.device("cpu" if cpu else f"{accelerator}:1")
        assert current_process() is process
    assert state.asked == {"cpu": cpu, "timeout": timedelta(days=7)}
    assert state.waited == 1
    assert current_process().count == 1


def test_one_that_was_launched_alone_waits_for_nobody(monkeypatch):
    state = State(monkeypatch, 1, "cpu:0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with sharded() as process:
        assert (process.count, process.device) == (1, torch.device("cpu"))
    assert list(state.asked) == ["cpu"], "no time limit where there are no others"


def test_processes_that_do_not_find_each_other(monkeypatch):
    State(monkeypatch, 1)
    with (
        pytest.raises(RuntimeError, match=r"got 1 connected processes; expected 2.*--multi_gpu"),
        sharded(),
    ):
        pass
    assert current_process().count == 1


def test_a_launcher_without_accelerate(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(RuntimeError, match=r'started 2 processes.*pip install "headtools\[scale\]"'), sharded():
        pass
