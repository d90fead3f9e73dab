"""Who does what: every item once, the work spread evenly, and nothing asked of anybody where no launcher is."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from processes import ended, needs_forks, start, together

import headtools as ht
from headtools.heads.partial import Partial
from headtools.heads.shards import Shard, current, launched


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
