"""How many heads the organism needs: the command, its batches, and its comparison with chance."""

import itertools
import json

import pytest
import torch

import headtools as ht
from headtools.organism import pruning
from headtools.sparse.fit import fit_gates


def test_batches_by_step_whatever_was_asked_before():
    in_turn, jumping = pruning.TrainingBatches(seed=3, tokens=256), pruning.TrainingBatches(seed=3, tokens=256)
    several = [in_turn(step) for step in range(90)]  # more than one chunk
    assert in_turn.chunk > 0
    for step in (80, 3, 80, 0):
        batch = jumping(step)
        assert all(torch.equal(batch[key], several[step][key]) for key in batch)
    assert not torch.equal(several[0]["input_ids"], pruning.TrainingBatches(seed=4, tokens=256)(0)["input_ids"])
    sizes = [len(b["input_ids"]) * (b["input_ids"].shape[1] + b["labels"].shape[1]) for b in several]
    assert max(sizes) <= 256
    assert sum(sizes) / len(sizes) > 180


def test_chance_by_counting():
    heads, with_role, kept = [str(i) for i in range(6)], ["0", "1", "2"], ["0", "2", "5"]
    hits = [len(set(some) & set(with_role)) for some in itertools.combinations(heads, 3)]
    row = pruning.against_chance(kept, with_role, 6)
    assert row["with_role"] == 2
    assert row["chance"] == sum(hits) / len(hits)
    assert row["p"] == pytest.approx(sum(hit >= 2 for hit in hits) / len(hits), abs=1e-6)


def test_a_row_is_what_cutting_gives(tmp_path, capsys, monkeypatch):
    """Gates that start closed but for a few; one command, two rows, the file as told."""
    model, tokenizer = ht.load()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruning.gates_kept(model, tokenizer, penalty=0.02, weights="all", steps=1, sentences=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    file = tmp_path / "rows.json"
    options = ["--penalty", "0", "0.02", "--weights", "encoder", "--seed", "1", "--steps", "1", "--limit", "4"]
    monkeypatch.setattr(pruning, "CURVE_ON", 6)
    pruning.main([*options, "--file", str(file), "--run", str(tmp_path / "runs")])
    told = json.loads(file.read_text(encoding="utf-8"))
    rows = told["gates"]
    assert [point["kept"] for point in told["curve"]] == [48, 42, 36, 24, 18, 12, 6, 0]
    assert [row["penalty"] for row in rows] == [0, 0.02]
    assert all(len(row["kept"]) == 48 and 0 <= row["low"] <= row["bleu"] <= 100 for row in rows)
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("| encoder, gates | 1 | 0.02 | 1 | 48 | ")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"encoder-0-1", "encoder-0.02-1"}


def test_the_decoder_stays_frozen():
    model, _ = ht.load()
    batches = pruning.TrainingBatches(tokens=128)
    found = fit_gates(model, batches, 0.02, over="encoder", weights="encoder", steps=1, quiet=True)
    now = dict(found.model.named_parameters())
    changed = {name for name, weight in model.named_parameters() if not weight.equal(now[name])}
    assert changed
    assert all(name.startswith(("model.encoder.layers.", "model.encoder.layer_norm")) for name in changed)


def test_a_row_takes_its_place():
    rows = []
    for weights, seed, penalty in (("all", 0, 0.1), ("encoder", 1, 0), ("encoder", 0, 0.1), ("encoder", 0, 0.1)):
        rows = pruning.place(rows, {"weights": weights, "steps": 9, "seed": seed, "penalty": penalty, "new": len(rows)})
    assert [(r["weights"], r["seed"], r["new"]) for r in rows] == [("encoder", 0, 3), ("encoder", 1, 1), ("all", 0, 0)]


# --- what ships -------------------------------------------------------------------------------------------------------

TOLD = json.loads(pruning.FILE.read_text(encoding="utf-8"))
CARD = pruning.ASSETS.joinpath("README.md").read_text(encoding="utf-8")


def test_the_card_says_what_the_command_wrote():
    for table in pruning.markdown(TOLD).split("\n\n"):
        assert table in CARD


def test_gates_keep_a_quarter_of_the_heads_within_two_points():
    """What the issue of the organism asked for, and what the card claims."""
    control = next(r for r in TOLD["gates"] if (r["weights"], r["penalty"], r["seed"]) == ("encoder", 0, 0))
    assert len(control["kept"]) >= 46
    assert any(len(r["kept"]) <= 12 and r["bleu"] >= control["bleu"] - 2 for r in TOLD["gates"])


def test_the_curve_has_a_shape_and_is_so_still():
    found = {point["kept"]: point for point in TOLD["curve"]}
    assert found[24]["accuracy"] > found[48]["accuracy"] - 0.01, "half of the heads go for nothing"
    assert found[6]["accuracy"] < 0.7
    assert all(found[kept]["low"] > found[kept]["best"] for kept in (18, 24, 36))
    sentences = [ht.corpus("organism", split, 60) for split in ("validation", "test")]
    for point in pruning.encoder_curve(ht.load()[0], *sentences):
        if point["kept"] in (48, 36, 24, 0):
            assert point["accuracy"] == pytest.approx(found[point["kept"]]["accuracy"], abs=0.06)
