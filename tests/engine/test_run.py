"""The one loop over batches: order, memory, resuming, refusals; several processes in test_processes.py."""

import json
import weakref

import pytest
import torch
from torch import nn

from headtools._engine.processes import current_process
from headtools._engine.progress import advance
from headtools._engine.run import function_name, run


class Sums:
    """The sum of each batch, and how often it was asked for."""

    def __init__(self, **settings):
        self.settings, self.measured = settings, []

    def per_batch(self, batch):
        self.measured.append(int(batch["x"][0]))
        return {"sum": batch["x"].sum()[None] * self.settings.get("factor", 1)}

    def finish(self, parts):
        return torch.cat([part["sum"] for part in parts])


MODEL = nn.Linear(2, 2)
BATCHES = [{"x": torch.full((3,), float(number))} for number in range(5)]
EXPECTED = torch.tensor([0.0, 3.0, 6.0, 9.0, 12.0])


def test_parts_come_in_order():
    assert torch.equal(run(Sums(), MODEL, iter(BATCHES)), EXPECTED)


def test_nothing_is_kept_of_a_batch_that_has_gone_by():
    """``finish`` gets a batch's part before the next is measured, and nobody else holds it."""
    parts, alive = [], []

    class Streaming(Sums):
        def per_batch(self, batch):
            alive.append(sum(ref() is not None for ref in parts))
            return super().per_batch(batch)

        def finish(self, given):
            for part in given:
                parts.append(weakref.ref(part["sum"]))
                del part

    for options in ({}, {"label": "summing"}):
        parts.clear()
        run(Streaming(), MODEL, BATCHES, **options)
    assert max(alive) <= 1


def test_a_stopped_run_goes_on(tmp_path):
    stopped, repeated = Sums(), Sums()
    per_batch = stopped.per_batch
    stopped.per_batch = lambda batch: per_batch(batch) if len(stopped.measured) < 3 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(stopped, MODEL, BATCHES, checkpoint=tmp_path)
    assert torch.equal(run(repeated, MODEL, BATCHES, checkpoint=tmp_path), EXPECTED)
    assert repeated.measured == [0, 3, 4], "the first finished batch is compared, the others are read"
    finished = Sums()
    assert torch.equal(run(finished, MODEL, BATCHES, checkpoint=tmp_path), EXPECTED)
    assert finished.measured == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measure": Sums(factor=2)}, r"another run \(factor 1, not 2\): use another folder, checkpoint='elsewhere'"),
        ({"model": nn.Linear(2, 2)}, r"another run \(other model\)"),
        ({"batches": BATCHES[:4]}, r"another run \(other batches\)"),
    ],
)
def test_another_run_is_refused(tmp_path, change, message):
    given = {"measure": Sums(factor=1), "model": MODEL, "batches": BATCHES}
    run(**given, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=message):
        run(**given | change, checkpoint=tmp_path)


def test_a_function_that_changed_is_noticed(tmp_path):
    """It has no fingerprint; the first batch that is kept is measured again."""
    run(Sums(), MODEL, BATCHES, checkpoint=tmp_path)
    changed = Sums()
    changed.per_batch = lambda batch: {"sum": batch["x"].sum()[None] + 1}
    with pytest.raises(ValueError, match=r"sum of batch 0 is 0 there and 1 now\. Was a function changed"):
        run(changed, MODEL, BATCHES, checkpoint=tmp_path)


def test_a_cheaper_check_is_used_where_there_is_one(tmp_path):
    run(Sums(), MODEL, BATCHES, checkpoint=tmp_path)
    repeated = Sums()
    repeated.check = lambda batch: {"sum": torch.tensor([7.0])}
    with pytest.raises(ValueError, match="sum of batch 0 is 0 there and 7 now"):
        run(repeated, MODEL, BATCHES, checkpoint=tmp_path)
    assert repeated.measured == []


def test_damaged_files_are_named(tmp_path):
    run(Sums(), MODEL, BATCHES, checkpoint=tmp_path)
    file = tmp_path / "000002.safetensors"
    data = file.read_bytes()
    for broken in (data[:-3], b"", (tmp_path / "000003.safetensors").read_bytes()):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=r"000002\.safetensors cannot be used: delete it"):
            run(Sums(), MODEL, BATCHES, checkpoint=tmp_path)
    file.unlink()
    assert torch.equal(run(Sums(), MODEL, BATCHES, checkpoint=tmp_path), EXPECTED)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is truncated.*: delete .* to start again"):
        run(Sums(), MODEL, BATCHES, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="is a file: choose a folder"):
        run(Sums(), MODEL, BATCHES, checkpoint=file)


def test_settings_are_readable(tmp_path):
    run(Sums(factor=3), MODEL, BATCHES, checkpoint=tmp_path)
    settings = json.loads((tmp_path / "run.json").read_text())
    assert settings["measure"] == "Sums"
    assert settings["factor"] == 3
    assert {"model", "batches"} < settings.keys()


def test_the_bar_moves_with_batches_and_inside_them(monkeypatch):
    moved = []

    class Bar:
        def update(self, steps):
            moved.append(steps)

        def close(self):
            moved.append("closed")

    monkeypatch.setattr("tqdm.tqdm", lambda **options: Bar())

    class Half(Sums):
        def per_batch(self, batch):
            advance()
            return super().per_batch(batch)

    run(Half(), MODEL, BATCHES[:2], label="summing", steps=2)
    assert moved == [1, 1, 1, 1, "closed"]
    advance()  # outside of any run, nothing happens
    moved.clear()
    with pytest.raises(ZeroDivisionError):
        run(Sums(), MODEL, (1 / 0 for _ in "a"), label="summing")


def test_alone_outside_of_sharded():
    assert (current_process().index, current_process().count, current_process().main) == (0, 1, True)
    assert current_process().gather(lambda: 3) == [3]


def test_names_of_functions():
    assert function_name(None) is None
    assert function_name(torch.sum) == function_name(torch.sum)
    assert function_name(test_names_of_functions).endswith("test_run.test_names_of_functions")
