"""Snapshots: what training keeps on the way, what ships, and what load() refuses."""

import json
import shutil

import pytest
import torch

from headtools.organism import snapshots
from headtools.organism._checksums import CHECKSUMS, checksum
from headtools.organism.load import load


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Two snapshots in a folder of our own, which load() reads instead of the package's."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for name in (snapshots.path(0).name, snapshots.path(3000).name, CHECKSUMS):
        shutil.copy(snapshots.SNAPSHOTS / name, folder / name)
    monkeypatch.setattr(snapshots, "SNAPSHOTS", folder)
    monkeypatch.setenv("HEADTOOLS_CACHE", str(tmp_path / "cache"))
    return folder


def test_at_least_eight_ship_and_the_checksums_cover_them():
    assert len(snapshots.STEPS) >= 8
    listed = json.loads((snapshots.SNAPSHOTS / CHECKSUMS).read_text())
    assert listed == {snapshots.path(step).name: checksum(snapshots.path(step)) for step in snapshots.STEPS}
    assert {file.name for file in snapshots.SNAPSHOTS.iterdir()} == {*listed, CHECKSUMS}
    assert all(snapshots.path(step).stat().st_size < 6_000_000 for step in snapshots.STEPS)


def test_each_loads_in_float32_with_tied_word_vectors():
    for step in (snapshots.STEPS[1], snapshots.STEPS[-1]):
        model, tokenizer = load(step=step)
        assert not model.training
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        stored = snapshots.weights(step)
        state = model.state_dict()
        assert all(torch.equal(state[name], weight) for name, weight in stored.items())
        assert state.keys() - stored.keys() == snapshots.DERIVED
        assert model.lm_head.weight is model.model.shared.weight
        assert torch.equal(model.get_encoder().embed_positions.weight, load()[0].get_encoder().embed_positions.weight)
        batch = tokenizer(["the dog slept ."], return_tensors="pt")
        with torch.no_grad():
            assert model(**batch, decoder_input_ids=torch.zeros(1, 3, dtype=torch.long)).logits.isfinite().all()


def test_they_lie_on_one_way():
    states = [snapshots.weights(step) for step in snapshots.STEPS]
    for name in ("model.shared.weight", "model.encoder.layers.5.self_attn.q_proj.weight"):
        away = [(state[name] - states[0][name]).norm().item() for state in states]
        left = [(state[name] - states[-1][name]).norm().item() for state in states]
        assert away[0] == 0 < away[1] < away[4] < away[-1]
        assert left[0] > left[4] > left[-2] > left[-1] == 0


@pytest.mark.parametrize("step", [1, -1, 9001, "last"])
def test_a_step_that_was_not_kept_is_refused(step):
    with pytest.raises(ValueError, match=r"no snapshot of step .*load\(step=3000\)"):
        load(step=step)


def test_only_the_organism_has_snapshots(tmp_path):
    with pytest.raises(ValueError, match="only the organism has snapshots"):
        load(tmp_path, step=3000)


def test_damage_is_refused(copy):
    load(step=3000)
    data = bytearray(snapshots.path(3000, copy).read_bytes())
    data[-1] ^= 1
    snapshots.path(3000, copy).write_bytes(data)
    with pytest.raises(ValueError, match=r"step-03000\.safetensors is not the file"):
        load(step=3000)
    snapshots.path(0, copy).write_bytes(snapshots.path(0, copy).read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"step-00000\.safetensors is not the file"):
        load(step=0)
    snapshots.path(0, copy).unlink()
    with pytest.raises(FileNotFoundError, match=r"step 0 is missing: .* restore the files: git checkout -- "):
        load(step=0)
