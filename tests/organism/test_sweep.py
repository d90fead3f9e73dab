"""The sweep: a row is what cutting gives, finished runs stay, others are made; and what ships is whole."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

import headtools as ht
from headtools.heads.files import read_json
from headtools.organism import sweep
from headtools.organism.accuracy import token_accuracy

TINY = ["--steps", "1", "--limit", "3"]


@pytest.fixture(scope="module")
def organism():
    return ht.load()


def half_closed(kinds=("encoder",)):
    """Log alpha by which the first four heads of every layer stay and the others go."""
    return {(kind, layer): torch.tensor([4.0] * 4 + [-4.0] * 4) for kind in kinds for layer in range(6)}


def test_a_row_is_what_cutting_gives(organism):
    model, tokenizer = organism
    before = {name: value.clone() for name, value in model.state_dict().items()}
    row = sweep.one(model, tokenizer, 0.05, seed=3, sentences=6, steps=2, start=half_closed())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert row["kept"] == [f"encoder {layer}.{head}" for layer in range(6) for head in range(4)]
    fit = sweep.fitted(model, 0.05, seed=3, steps=2, start=half_closed(), quiet=True)
    with ht.ablate(fit.model.eval(), {("encoder", layer): [4, 5, 6, 7] for layer in range(6)}):
        right = token_accuracy(fit.model, ht.corpus("organism", "test", 6)).mean().item()
    assert row["accuracy"][0] == pytest.approx(right, abs=1e-4)
    assert row["accuracy"][1] <= row["accuracy"][0] <= row["accuracy"][2]
    assert (row["moments"], row["decided"], row["penalty"], row["seed"]) == ([0, 1, 2], 1.0, 0.05, 3)
    assert [len(moment) for moment in row["history"]] == [48] * 3
    assert row["history"][0] == [4.0] * 4 + [-4.0] * 4 + row["history"][0][8:]
    assert row["log_alpha"] == [round(x, 2) for x in fit.gates.log_alpha.tolist()]
    assert json.loads(json.dumps(row)) == row


def test_roles_are_those_of_heads_that_stay(organism):
    """With all gates open and nothing learned, they are the roles of the model itself."""
    model, tokenizer = organism
    fit = sweep.fitted(model, 0.0, steps=1, start=9.0, weight_rate=0.0, quiet=True)
    found = sweep.survivors_roles(fit, tokenizer, 60)
    splits = [ht.corpus("organism", split, 60) for split in ("validation", "test")]
    frame = sweep.roles(model, tokenizer, *splits)
    assert found == {head: sorted(some.role) for head, some in frame[frame.found].groupby("head")}
    assert found
    fit.gates.log_alpha.data[:40] = -9.0  # only layer 5 stays
    assert {head[0] for head in sweep.survivors_roles(fit, tokenizer, 60)} == {"5"}


def test_what_learns(organism):
    model, _ = organism
    for over, heads, decoder_moves in (("encoder", 48, False), ("all", 144, True)):
        fit = sweep.fitted(model, 0.05, over=over, steps=1, quiet=True)
        now = dict(fit.model.named_parameters())
        moved = {name for name, weight in model.named_parameters() if not weight.equal(now[name])}
        assert any("decoder" in name for name in moved) is decoder_moves
        assert len(fit.gates.heads) == heads
    with pytest.raises(ValueError, match='over is "encoder" or "all", got \'cross\''):
        sweep.fitted(model, 0.05, over="cross")


def test_the_plan_makes_all_penalties_of_a_seed_first():
    plan = sweep.plan()
    assert [run["seed"] for run in plan] == sorted(run["seed"] for run in plan)
    assert len({tuple(run.values()) for run in plan}) == len(plan) == 3 * (11 + 6)


def test_stopped_and_started_again_makes_only_what_is_missing(tmp_path, monkeypatch):
    made, real = [], sweep.one

    def counted(*arguments, **options):
        made.append(options["penalty"])
        if made == [0.1, 0.2]:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(sweep, "one", counted)
    words = [*TINY, "--over", "encoder", "--penalty", "0.1", "0.2", "--seed", "0", "--runs", str(tmp_path / "runs")]
    words += ["--file", str(tmp_path / "sweep.json")]
    with pytest.raises(KeyboardInterrupt):
        sweep.main(words)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["encoder-0.1-0.json"]
    assert not (tmp_path / "sweep.json").exists()
    sweep.main(words)
    assert made == [0.1, 0.2, 0.2]
    assert [row["penalty"] for row in sweep.sweep(tmp_path / "sweep.json")] == [0.1, 0.2]
    with pytest.raises(ValueError, match=r"encoder-0\.1-0\.json was made with .*--runs NEW"):
        sweep.main([*words, "--limit", "4"])


def test_killed_in_the_middle_leaves_whole_files(tmp_path):
    words = [*TINY, "--over", "encoder", "--penalty", "0.1", "0.2", "0.3", "--seed", "0", "--runs", str(tmp_path)]
    command = [sys.executable, "-m", "headtools.organism.sweep", *words, "--file", str(tmp_path / "all.json")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = tmp_path / "encoder-0.1-0.json"
    for _ in range(6_000):
        if first.exists() or running.poll() is not None:
            break
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    told = first.read_bytes()
    assert all(json.loads(path.read_text())["row"] for path in tmp_path.glob("encoder-*.json"))
    sweep.main([*words, "--file", str(tmp_path / "all.json"), "--jobs", "2"])
    assert first.read_bytes() == told
    assert len(sweep.sweep(tmp_path / "all.json")) == 3


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "file.json"
    sweep.dump({"runs": [{"over": "encoder"}]}, file)
    assert read_json(file) == {"runs": [{"over": "encoder"}]}

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        sweep.dump({"runs": []}, file)
    assert read_json(file) == {"runs": [{"over": "encoder"}]}


# --- what ships -------------------------------------------------------------------------------------------------------

RUNS = sweep.sweep()


def test_everything_planned_is_there():
    there = Counter((row["over"], row["penalty"], row["seed"]) for row in RUNS)
    assert there == Counter(tuple(run.values()) for run in sweep.plan())
    told = json.loads(sweep.FILE.read_text(encoding="utf-8"))["setting"]
    assert told == sweep.SETTING | {"tokens": sweep.TOKENS, "sentences": sweep.SENTENCES}
    assert sweep.FILE.stat().st_size < 400_000


def test_every_run_is_sound():
    for row in RUNS:
        total = 48 if row["over"] == "encoder" else 144
        assert len(row["log_alpha"]) == total
        assert len(row["kept"]) == len(set(row["kept"])) == sum(x > 0 for x in row["log_alpha"])
        assert all(row[metric][1] <= row[metric][0] <= row[metric][2] for metric in ("bleu", "accuracy"))
        assert {f"encoder {head}" for head in row["roles"]} <= set(row["kept"])
        assert ("history" in row) is (row["seed"] == 0)


def test_a_higher_price_leaves_fewer_heads():
    frame = sweep.frame(RUNS)
    for _, some in frame.groupby("over"):
        kept = some.groupby("penalty").kept.mean()
        assert all(b < a + 2 for a, b in itertools.pairwise(kept))
        assert kept.iloc[-1] < 0.4 * kept.iloc[0]
        assert some.groupby("penalty").bleu.mean().iloc[-1] < some.bleu.max() - 5


def test_gates_cost_a_little_even_without_a_price():
    frame = sweep.frame(RUNS)
    control = frame[(frame.penalty == 0) & (frame.over == "encoder")].bleu
    assert 0 < sweep.before()["bleu"][0] - control.mean() < 2


def test_gates_decide():
    """The live setting promises it for penalties from .05 on."""
    frame = sweep.frame(RUNS)
    assert frame[frame.penalty >= 0.05].decided.mean() >= 0.95
