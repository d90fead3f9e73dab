"""Snapshots: what training keeps on the way, what ships, and what load() refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from headtools.organism import snapshots
from headtools.organism._checksums import CHECKSUMS, checksum
from headtools.organism.load import load


def test_the_checksums_cover_them():
    listed = json.loads((snapshots.SNAPSHOTS / CHECKSUMS).read_text())
    assert listed == {snapshots.path(step).name: checksum(snapshots.path(step)) for step in snapshots.STEPS}
    assert {file.name for file in snapshots.SNAPSHOTS.iterdir()} == {*listed, CHECKSUMS}
    assert all(snapshots.path(step).stat().st_size < 6_000_000 for step in snapshots.STEPS)


@pytest.mark.parametrize("step", [snapshots.STEPS[1], snapshots.STEPS[-1]])
def test_one_loads_in_float32_with_tied_word_vectors(step):
    model, tokenizer = load(step=step)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    stored, state = snapshots.weights(step), model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in stored.items())
    assert state.keys() - stored.keys() == snapshots.DERIVED
    assert model.lm_head.weight is model.model.shared.weight
    assert torch.equal(model.get_encoder().embed_positions.weight, load()[0].get_encoder().embed_positions.weight)
    assert tokenizer("the dog slept .").tokens()[-1] == "</s>"


def test_they_lie_on_one_way():
    states = [snapshots.weights(step) for step in snapshots.STEPS]
    for name in ("model.shared.weight", "model.encoder.layers.5.self_attn.q_proj.weight"):
        away = [(state[name] - states[0][name]).norm().item() for state in states]
        left = [(state[name] - states[-1][name]).norm().item() for state in states]
        assert away[0] == 0 < away[1] < away[4] < away[-1]
        assert left[0] > left[4] > left[-2] > left[-1] == 0


def test_the_cache_stands_in_and_damage_is_refused(tmp_path, monkeypatch):
    package, cache = tmp_path / "package", tmp_path / "cache" / "snapshots"
    for folder in (package, cache):
        folder.mkdir(parents=True)
    shutil.copy(snapshots.SNAPSHOTS / CHECKSUMS, package)
    file = Path(shutil.copy(snapshots.path(3000), cache))
    monkeypatch.setattr(snapshots, "SNAPSHOTS", package)
    monkeypatch.setenv("HEADTOOLS_CACHE", str(cache.parent))
    load(step=3000)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    for damaged in (data, data[:-100]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"step-03000\.safetensors is not the file"):
            load(step=3000)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"step 3000 is missing: .* restore the files: git checkout -- "):
        load(step=3000)
