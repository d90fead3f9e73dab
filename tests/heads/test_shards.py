"""Who does what: every item once, the work spread evenly, and nothing asked of anybody where no launcher is."""

import sys
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from processes import ended, needs_forks, start, together

import headtools as ht
from headtools.heads.partial import Partial
from headtools.heads.shards import ElsewhereError, Shard, current, launched, outline


@given(some.integers(1, 9), some.integers(0, 40), some.sets(some.integers(0, 39)))
def test_every_item_is_dealt_out_once_and_evenly(count, items, done):
    dealt = [list(Shard(index, count).mine(range(100, 100 + items), done)) for index in range(count)]
    assert sorted(number for part in dealt for number, _ in part) == list(range(items))
    assert all(item == number + 100 for part in dealt for number, item in part)
    for kept in (True, False):
        sizes = [sum((number in done) == kept for number, _ in part) for part in dealt]
        assert max(sizes) - min(sizes) <= 1


def test_without_a_launcher_nothing_happens(monkeypatch):
    for name in ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert launched() == 0
    with ht.sharded() as shard:
        assert (shard.index, shard.count, shard.main, shard.device.type) == (0, 1, True, "cpu")
        assert shard.all(lambda: 3) == [3]
        assert shard.total(torch.ones(2)).tolist() == [1, 1]
        shard.agree("this", "batches")
    assert current().count == 1


def test_results_come_in_order_and_sums_are_sums():
    needs_forks()

    def inside():
        with ht.sharded() as shard:
            inner = current() is shard
            found = shard.merged(lambda: {number: item * 2 for number, item in shard.mine("abcde")})
            total = shard.total(torch.tensor([1.0, shard.index], dtype=torch.float64))
            return inner, shard.main, found, total.tolist(), current().count
        return None

    for index, (inner, main, found, total, count) in enumerate(together(3, inside)):
        assert inner
        assert main == (index == 0)
        assert found == ["aa", "bb", "cc", "dd", "ee"]
        assert total == [3.0, 3.0]
        assert count == 3
    assert current().count == 1


def test_the_context_ends():
    needs_forks()

    def after():
        with ht.sharded():
            pass
        return current().count

    assert together(2, after) == [1, 1]


def test_a_folder_that_not_all_see_is_told(tmp_path):
    needs_forks()
    (tmp_path / "0").mkdir()
    Partial(tmp_path / "0", {}).save(0, {"x": torch.ones(1)})

    def inside():
        with ht.sharded() as shard:
            partial = Partial(tmp_path / str(shard.index), {})
            return shard.all(lambda: [partial.read(number) for number in partial.kept])

    (_, first), (_, second) = ended(start(2, inside))
    assert "process 1 of 2 failed" in first
    assert "a folder that all machines see" in second


def test_a_renamed_file_is_not_counted_twice(tmp_path):
    Partial(tmp_path, {}).save(0, {"x": torch.ones(1)})
    (tmp_path / "batch-000001.safetensors").write_bytes((tmp_path / "batch-000000.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"000001.safetensors holds batch 0: give it back its name"):
        Partial(tmp_path, {})


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
    assert Shard(0, 2).all(lambda: "mine") == ["mine", "theirs"]
    others((None, None))
    assert Shard(0, 2).all(lambda: None) == [None, None]


def test_a_failure_anywhere_is_an_error_everywhere(others):
    others((None, "ValueError: odd"))
    with pytest.raises(ElsewhereError, match=r"^process 1 of 2 failed: ValueError: odd$"):
        Shard(0, 2).all(lambda: 1)
    told = []

    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):  # its own, with its own trace
        Shard(0, 2).all(fails)
    others((1, None))
    with pytest.raises(KeyError, match="mine"):
        Shard(0, 2).all(fails)
    with pytest.raises(ZeroDivisionError):  # alone, too
        Shard().all(lambda: told.append(1) or 1 / 0)
    assert told == [1]


@pytest.mark.parametrize(
    ("mine", "theirs", "counts"),
    [
        ({0: "a", 1: "b"}, {1: "b"}, r"\[2, 1\]"),  # one batch in both
        ({0: "a"}, {2: "c"}, r"\[1, 1\]"),  # one in none
        ({1: "b"}, {2: "c"}, r"\[1, 1\]"),
    ],
)
def test_batches_that_make_no_whole(others, mine, theirs, counts):
    others((theirs, None))
    with pytest.raises(ValueError, match=rf"different numbers of batches: {counts} of them make no whole"):
        Shard(0, 2).merged(lambda: mine)


def test_processes_agree_or_all_of_them_are_told(others):
    others(("same", None))
    Shard(0, 2).agree("same", "batches")
    with pytest.raises(ValueError, match=r"the 2 processes have 2 different batches.*before batches are made"):
        Shard(0, 2).agree("other", "batches")


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ({}, 0),
        ({"WORLD_SIZE": "3"}, 3),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, 1),
        ({"WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no"}, 2),
    ],
)
def test_how_many_a_launcher_started(monkeypatch, told, count):
    for name in ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert launched() == count


class State:
    """Stands for accelerate's PartialState: keeps what was asked, has what it was told to have."""

    def __init__(self, monkeypatch, count, device="cpu"):
        accelerate = pytest.importorskip("accelerate")
        self.num_processes, self.process_index, self.device = count, 1, torch.device(device)
        self.asked, self.waited = None, 0
        monkeypatch.setattr(accelerate, "PartialState", self.made)
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)

    def made(self, **asked):
        self.asked = asked
        return self

    def wait_for_everyone(self):
        self.waited += 1


@pytest.mark.parametrize(
    ("card", "use_cpu", "cpu"),
    [(None, None, True), (None, "false", True), ("mps", None, True), ("cuda", None, False), ("cuda", "false", False),
     ("cuda", "0", False), ("cuda", "true", True), ("cuda", "True", True), ("cuda", "1", True),
     ("cuda", "yes", True), ("xpu", None, False)],
)  # fmt: skip
def test_where_processes_work(monkeypatch, card, use_cpu, cpu):
    state = State(monkeypatch, 2, "cpu" if cpu else f"{card}:1")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: card is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: card and torch.device(card))
    if use_cpu is not None:
        monkeypatch.setenv("ACCELERATE_USE_CPU", use_cpu)
    with ht.sharded() as shard:
        assert (shard.index, shard.count) == (1, 2)
        assert shard.device == torch.device("cpu" if cpu else f"{card}:1")
        assert current() is shard
    assert state.asked == {"cpu": cpu, "timeout": timedelta(days=7)}
    assert state.waited == 1
    assert current().count == 1


def test_one_that_was_launched_alone_waits_for_nobody(monkeypatch):
    state = State(monkeypatch, 1, "cpu:0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with ht.sharded() as shard:
        assert (shard.count, shard.device) == (1, torch.device("cpu"))
    assert list(state.asked) == ["cpu"], "no time limit where there are no others"


def test_processes_that_do_not_find_each_other(monkeypatch):
    State(monkeypatch, 1)
    with (
        pytest.raises(RuntimeError, match=r"2 processes were started and 1 found each other.*--multi_gpu"),
        ht.sharded(),
    ):
        pass
    assert current().count == 1


def test_a_launcher_without_accelerate(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(RuntimeError, match=r'started 2 processes.*pip install "headtools\[scale\]"'), ht.sharded():
        pass


def test_sums_are_made_where_the_process_works(monkeypatch):
    utils = pytest.importorskip("accelerate.utils")
    asked = []
    monkeypatch.setattr(utils, "reduce", lambda part, how: asked.append((part.device.type, how)) or torch.ones(2))
    assert Shard(0, 2, torch.device("meta")).total(torch.zeros(2)).tolist() == [1, 1]
    assert asked == [("meta", "sum")]


def test_the_outline_of_a_model():
    model = torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([1.5, -2]))
    assert outline(model).splitlines() == [
        "weight (2,) [1.5, -2.0]",
        "bias (2,) [0.0, 0.0]",
        "running_mean (2,) [0.0, 0.0]",
        "running_var (2,) [1.0, 1.0]",
        "num_batches_tracked () [0.0]",
    ]
    wide = torch.nn.Linear(3, 2, bias=False)
    first = outline(wide)
    assert first.count(",") == 4, "two sizes and four numbers"
    with torch.no_grad():
        wide.weight[1, 1] += 1  # the fifth number
        assert outline(wide) == first
        wide.weight[1, 0] += 1
    assert outline(wide) != first
    assert outline(wide.to("meta")) == "weight (2, 3) []"
