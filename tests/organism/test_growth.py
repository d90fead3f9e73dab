"""growth.json: complete, remade where that is cheap, and written whole."""

from dataclasses import asdict

import pytest

from headtools.heads.files import write_whole
from headtools.organism import checkpoint, snapshots
from headtools.organism import growth as g
from headtools.organism.load import load
from headtools.organism.pruning import SHARES
from headtools.organism.train import Recipe

KEYS = {"bleu", "hard", "accuracy", "roles", "with_role", "heads_total", "carriers", "curve"}


@pytest.fixture(scope="module")
def told():
    return g.growth()


def test_every_snapshot_seed_and_size_is_there(told):
    assert [entry["step"] for entry in told["snapshots"]] == snapshots.steps()
    assert [entry["seed"] for entry in told["seeds"]] == [1, 2, 3]
    assert [entry["heads"] for entry in told["sizes"]] == [4, 8, 16]
    for part, key in (("snapshots", "step"), ("seeds", "seed"), ("sizes", "heads")):
        assert all(entry.keys() == KEYS | {key} for entry in told[part])


def test_the_entries_agree_with_themselves(told):
    for part in told.values():
        for entry in part:
            assert entry["bleu"][1] <= entry["bleu"][0] <= entry["bleu"][2]
            assert entry["with_role"] == len(entry["carriers"])
            for role, found in entry["roles"].items():
                assert found["low"] <= found["score"] <= found["high"]
                assert not found["holds"] or role in entry["carriers"][found["head"]]
            assert [point["share"] for point in entry["curve"]] == [round(share, 4) for share in SHARES]
            assert entry["curve"][0]["accuracy"] == entry["curve"][0]["random"] == entry["accuracy"]
    same = [next(e for e in told[part] if e[key] == value)
            for part, key, value in (("seeds", "seed", 1), ("sizes", "heads", 8))]  # fmt: skip
    assert {k: v for k, v in same[0].items() if k != "seed"} == {k: v for k, v in same[1].items() if k != "heads"}


def test_one_entry_is_measured_again(told, monkeypatch):
    """The cheap half of an entry, for one snapshot: roles and carriers."""
    step = 3000
    stored = next(entry for entry in told["snapshots"] if entry["step"] == step)
    monkeypatch.setattr(g, "bleu", lambda *_: (0.0, 0.0, 0.0))
    monkeypatch.setattr(g, "encoder_curve", lambda *_: [])
    again = g.measure(*load(step=step))
    assert len(set(again["carriers"]) ^ set(stored["carriers"])) <= 1  # rounding may tip one that stands on its bar
    assert again["accuracy"] == pytest.approx(stored["accuracy"], abs=2e-3)
    for role, found in stored["roles"].items():
        if again["roles"][role]["head"] == found["head"]:
            assert again["roles"][role]["score"] == pytest.approx(found["score"], abs=5e-3)


def test_the_card_says_what_the_command_wrote(told):
    card = g.ASSETS.joinpath("README.md").read_text(encoding="utf-8")
    for table in g.markdown(told).split("\n\n"):
        assert table in card


def run(folder, **recipe):
    (folder / "model").mkdir(parents=True)
    write_whole(folder / checkpoint.FILE, {}, {"recipe": asdict(Recipe(**recipe))})
    return folder


def test_the_command_puts_each_entry_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(g, "measure", lambda model, tokenizer, limit: {
        "bleu": [model, 0, 0], "hard": [0, 0, 0], "with_role": limit, "heads_total": 48, "roles": {}})  # fmt: skip
    monkeypatch.setattr(g.ht, "load", lambda name=None, step=None: (len(name.parent.name) if name else step, None))
    file = tmp_path / "growth.json"
    runs = [run(tmp_path / "aa", seed=2, steps=3000), run(tmp_path / "bbb", heads=4, steps=3000),
            run(tmp_path / "c", steps=3000)]  # fmt: skip
    g.main(["--steps", "500", "0", "--runs", *map(str, runs), "--file", str(file)])
    g.main(["--steps", "250", "--file", str(file)])
    told = g.growth(file)
    assert [(e["step"], e["bleu"][0], e["with_role"]) for e in told["snapshots"]] == [
        (0, 0, 300), (250, 250, 300), (500, 500, 300)]  # fmt: skip
    assert [(e["seed"], e["bleu"][0]) for e in told["seeds"]] == [(1, 1), (2, 2)]
    assert [(e["heads"], e["bleu"][0]) for e in told["sizes"]] == [(4, 3), (8, 1)]
    assert not list(tmp_path.glob("*.part"))


def test_unfinished_and_other_runs_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no finished training"):
        g.main(["--steps", "--runs", str(tmp_path)])
    with pytest.raises(ValueError, match="compared after 3000"):
        g.main(["--steps", "--runs", str(run(tmp_path / "full"))])
