"""Runs that are stopped and go on: the same numbers, and nothing mixed."""

import pytest
import torch

import headtools as ht
from headtools.importance._leave_one_out import LeaveOneOut

from ..heads.zoo import zoo_model
from .test_ablation import quietly, scored


def batches():
    model, batch = zoo_model("bert")
    return model, [{key: value[row : row + 1] for key, value in batch.items()} for row in range(3)]


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    model, parts = batches()
    wanted = ht.ablation(model, parts * 2, scored, progress=False)
    stored = ht.ablation(model, parts * 2, scored, checkpoint=tmp_path / "whole", progress=False)
    assert all(torch.equal(stored.rows[key], value) for key, value in wanted.rows.items())
    assert all(torch.equal(stored.low[key], value) for key, value in wanted.low.items())
    calls = iter(range(30))

    def stops(outputs, batch):
        if len(list(tmp_path.glob("0*"))) == 2 and next(calls) > 1:
            raise KeyboardInterrupt
        return scored(outputs, batch)

    stops.__qualname__, stops.__module__ = scored.__qualname__, scored.__module__
    with pytest.raises(KeyboardInterrupt):
        quietly(model, parts, stops, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000000.safetensors", "000001.safetensors"]
    runs, plain = [], LeaveOneOut.__init__

    def counted(self, *args):
        runs.append(args)
        plain(self, *args)

    monkeypatch.setattr(LeaveOneOut, "__init__", counted)
    found = quietly(model, parts, scored, checkpoint=str(tmp_path))
    assert len(runs) == 2, "the last stored batch again, and the one that was missing"
    for key, value in found.items():
        assert torch.allclose(value, wanted.rows[key][:3], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replacement": "mean"}, "reference, replacement"),
        ({"sites": [("encoder", 1)]}, "heads"),
        ({"loss": lambda outputs, batch: scored(outputs, batch)}, "loss"),
        ({"per": "batch"}, "per"),
        ({"batches": batches()[1][:2]}, "batches"),
        ({"model": zoo_model("roberta")[0]}, "model"),
    ],
)
def test_another_run_is_refused(tmp_path, change, message):
    model, parts = batches()
    given = {"model": model, "batches": parts, "loss": scored}
    quietly(**given, checkpoint=tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"holds another run \(other {message}\)"):
        quietly(**(given | change), checkpoint=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_draws_and_references_are_part_of_a_run(tmp_path):
    model, parts = batches()
    quietly(model, parts, scored, replacement="resample", checkpoint=tmp_path)
    for other in ({"seed": 1}, {"reference": parts[:1]}):
        with pytest.raises(ValueError, match=f"other {next(iter(other))}"):
            quietly(model, parts, scored, replacement="resample", checkpoint=tmp_path, **other)
    zeros = tmp_path / "zero"
    quietly(model, parts, scored, checkpoint=zeros)
    quietly(model, parts, scored, checkpoint=zeros, seed=1, reference=parts[:1])  # zeros need neither
