"""Runs that are stopped and go on: whole files only, the same numbers, and nothing mixed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import headtools as ht
from headtools._engine import run
from headtools.importance._replay import AblatedLosses

from ..heads.zoo import zoo_model
from .test_ablation import quietly, scored

SMALL = {"sites": ["encoder"]}


def batches():
    model, batch = zoo_model("bert")
    return model, [{key: value[row : row + 1] for key, value in batch.items()} for row in range(3)]


def counted(monkeypatch):
    seen = []
    plain = AblatedLosses.__init__

    def watched(self, *args):
        plain(self, *args)
        seen.append(len(self.full_model))

    monkeypatch.setattr(AblatedLosses, "__init__", watched)
    return seen


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    model, parts = batches()
    wanted = quietly(model, parts, scored)
    calls = iter(range(30))

    def stops(outputs, batch):
        if len(list(tmp_path.glob("0*"))) == 2 and next(calls) > 1:
            raise KeyboardInterrupt
        return scored(outputs, batch)

    stops.__qualname__, stops.__module__ = scored.__qualname__, scored.__module__
    with pytest.raises(KeyboardInterrupt):
        quietly(model, parts, stops, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000000.safetensors", "000001.safetensors"]
    seen = counted(monkeypatch)
    found = quietly(model, parts, scored, checkpoint=tmp_path)
    assert seen == [1], "only the last batch was run"
    assert all(torch.allclose(found[key], value, atol=1e-5) for key, value in wanted.items())
    again = quietly(model, parts, scored, checkpoint=str(tmp_path))
    assert seen == [1]
    assert all(torch.equal(again[key], value) for key, value in found.items())


def test_what_is_stored_is_what_comes_back(tmp_path):
    model, parts = batches()
    parts = parts * 2
    stored = ht.ablation(model, parts, scored, checkpoint=tmp_path, progress=False)
    plain = ht.ablation(model, parts, scored, progress=False)
    assert all(torch.equal(stored.values[key], value) for key, value in plain.values.items())
    assert all(torch.equal(stored.low[key], value) for key, value in plain.low.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replacement": "mean"}, "replacement 'zero', not 'mean'"),
        ({"sites": [("encoder", 1)]}, "heads "),
        ({"loss": lambda outputs, batch: scored(outputs, batch)}, "loss 'tests"),
        ({"batches": "fewer"}, "other batches"),
        ({"model": "another"}, "other model"),
    ],
)
def test_another_run_is_refused(tmp_path, change, message):
    model, parts = batches()
    given = {"model": model, "batches": parts, "loss": scored}
    quietly(**given, checkpoint=tmp_path)
    if change.get("batches"):
        change = {"batches": parts[:2]}
    if change.get("model"):
        change = {"model": zoo_model("roberta")[0]}
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"(?s)holds another run.*{message}"):
        quietly(**(given | change), checkpoint=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_draws_and_references_are_part_of_a_run(tmp_path):
    model, parts = batches()
    quietly(model, parts, scored, replacement="resample", checkpoint=tmp_path)
    with pytest.raises(ValueError, match="seed 0, not 1"):
        quietly(model, parts, scored, replacement="resample", checkpoint=tmp_path, seed=1)
    with pytest.raises(ValueError, match="other reference"):
        quietly(model, parts, scored, replacement="resample", checkpoint=tmp_path, reference=parts[:1])
    other = tmp_path / "zero"
    quietly(model, parts, scored, checkpoint=other)
    quietly(model, parts, scored, checkpoint=other, seed=1, reference=parts[:1])  # zeros need neither


def test_what_has_no_fingerprint_is_seen_in_the_losses(tmp_path):
    model, parts = batches()
    factor = [1.0]

    def loss(outputs, batch):
        return factor[0] * scored(outputs, batch)

    quietly(model, parts, loss, checkpoint=tmp_path)
    factor[0] = 1.1
    with pytest.raises(ValueError, match="losses of batch 0 is"):
        quietly(model, parts, loss, checkpoint=tmp_path)
    factor[0] = 1.0
    with ht.ablate(model, {("encoder", 0): [1]}), pytest.raises(ValueError, match="a head switched off"):
        quietly(model, parts, loss, checkpoint=tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    model, parts = batches()
    quietly(model, parts, scored, checkpoint=tmp_path)
    path = tmp_path / "000001.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-8], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"000001.safetensors cannot be used: delete it"):
            quietly(model, parts, scored, checkpoint=tmp_path)
    path.unlink()
    quietly(model, parts, scored, checkpoint=tmp_path)
    assert path.exists()
    with pytest.raises(ValueError, match="is a file: choose a folder"):
        quietly(model, parts, scored, checkpoint=path)


@pytest.mark.full
def test_it_survives_being_killed(tmp_path):
    """A process killed with SIGKILL in the middle of a run, whenever that is, leaves whole files only."""
    script = textwrap.dedent("""
        import sys, torch, transformers, headtools as ht
        from headtools._engine import store
        torch.manual_seed(0)
        config = transformers.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2,
                                         intermediate_size=8, vocab_size=9)
        model, ids = transformers.BertForMaskedLM(config), torch.tensor([[1, 2, 3]])
        batches = [{"input_ids": ids + n, "labels": ids + n} for n in range(6)]
        plain = store.write_tensors

        def write(*given):
            made = plain(*given)
            if given[2]["batch"] == int(sys.argv[2]):
                print("written", flush=True)
                sys.stdin.read()  # wait for the end
            return made

        store.write_tensors = write
        found = ht.ablation_losses(model, batches, checkpoint=sys.argv[1], progress=False)
        print(sum(value.sum().item() for value in found.values()))
    """)
    root = Path(ht.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        [*command, tmp_path / "killed", "2"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert len(list((tmp_path / "killed").glob("0*.safetensors"))) == 3
    (tmp_path / "killed" / "000003.safetensors.1.part").write_bytes(b"half of a fi")
    ends = [
        subprocess.run([*command, tmp_path / folder, "-1"], env=environment, capture_output=True, text=True, check=True)
        for folder in ("killed", "whole")
    ]
    assert float(ends[0].stdout) == pytest.approx(float(ends[1].stdout), rel=1e-6)


def test_a_run_that_keeps_nothing_reads_no_weights(monkeypatch):
    monkeypatch.setattr(run, "fingerprint", lambda content: pytest.fail("not asked for"))
    model, parts = batches()
    quietly(model, parts, scored)
