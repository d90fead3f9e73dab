"""Merging against cutting: the command, and what ships."""


import pytest

import headtools as ht
from headtools.heads.files import write_whole
from headtools.organism import checkpoint, merging
from headtools.organism.publish import write

TOLD = merging.merging()
CARD = merging.ASSETS.joinpath("README.md").read_text(encoding="utf-8")


def test_the_card_says_what_the_command_wrote():
    assert merging.markdown(TOLD) in CARD


def test_every_way_leaves_as_many_heads(monkeypatch):
    seen = []
    monkeypatch.setattr(merging, "FIT_ON", 6)
    monkeypatch.setattr(merging, "MEASURED_ON", 2)
    real = merging.token_accuracy

    def count(model, sentences):
        seen.append(ht.sites(model)["cross"].n_heads)
        return real(model, sentences)

    monkeypatch.setattr(merging, "token_accuracy", count)
    model, _ = ht.load()
    told = merging.measure(model, "cross", [0.75])
    assert seen == [48, 12, 12, 12, 12, 12, 12]
    assert ht.sites(model).n_heads == 144
    (point,) = told["points"]
    assert (told["heads"], point["gone"], len(point["pairs"])) == (48, 36, 24)
    assert set(merging.WAYS) < set(point)


def test_the_command_keeps_what_it_measures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(merging, "measure", lambda model, kind, shares: {"kind": kind, "heads": 2, "points": []})
    file = tmp_path / "told.json"
    write({"models": [{"model": "step 1,500", "kind": "encoder", "heads": 0}]}, file)
    merging.main(["--models", "shipped", "1500", "--file", str(file)])
    told = merging.merging(file)
    assert [(e["model"], e["kind"], e["heads"]) for e in told] == [
        ("step 1,500", "encoder", 2), ("shipped", "encoder", 2), ("shipped", "cross", 2)]  # fmt: skip
    assert capsys.readouterr().out.startswith("| model | heads | gone | merge |")


def test_models_that_a_training_left(tmp_path, monkeypatch):
    def measure(model, kind, _shares):
        return {"kind": kind, "heads": ht.sites(model)[kind].n_heads, "points": []}

    monkeypatch.setattr(merging, "measure", measure)
    write_whole(tmp_path / "run" / checkpoint.FILE, {}, {"recipe": {"heads": 8, "steps": 9000}})
    (tmp_path / "run" / "model").symlink_to(merging.ASSETS)
    merging.main(["--models", "--runs", str(tmp_path / "run"), "--file", str(tmp_path / "told.json")])
    (entry,) = merging.merging(tmp_path / "told.json")
    assert entry == {"model": "8 heads a layer, 9,000 steps", "kind": "encoder", "heads": 48, "points": []}


def test_a_layer_may_lose_all_its_heads():
    model, _ = ht.load()
    some = merging.batches(ht.corpus("organism", limit=5))
    merging._cut(model, [("encoder", 0, h) for h in range(8)] + [("encoder", 1, 3)], some)
    sites = ht.sites(model)
    assert sites["encoder", 0].empty
    assert sites["encoder", 1].heads == 7


# --- what ships -------------------------------------------------------------------------------------------------------


def test_what_the_card_claims_of_merging():
    """Beside cutting the same heads merging gains, or at worst comes out even; beside a free choice it loses."""
    encoder, cross = TOLD[:2]
    assert (encoder["model"], encoder["kind"], cross["kind"]) == ("shipped", "encoder", "cross")
    for entry in TOLD:
        for point in entry["points"]:
            gains = {tuple(pair): (gain, low, high) for *pair, gain, low, high in point["differences"]}
            assert gains["merge", "same"][2] >= 0
            assert gains["merge, refit", "same, refit"][2] >= 0
            for (one, other), (gain, low, high) in gains.items():
                assert gain == pytest.approx(point[one][0] - point[other][0], abs=2e-4)
                assert low <= gain <= high
    assert all(p["differences"][2][4] < 0 for p in encoder["points"][1:]), "choosing the least important is better"
    assert cross["points"][2]["merge, refit"][0] > cross["accuracy"] - 0.005, "cross heads share a map"


def test_one_point_is_so_still():
    model, _ = ht.load()
    point = TOLD[1]["points"][1]
    pairs = [[tuple(head) for head in pair] for pair in point["pairs"]]
    frame = ht.merge(model, pairs, merging.batches(ht.corpus("organism", "validation", merging.FIT_ON)))
    assert frame.missed.mean() == pytest.approx(point["lost"], abs=0.005)
    right = merging.token_accuracy(model, ht.corpus("organism", "test", 60)).mean().item()
    assert right == pytest.approx(point["merge"][0], abs=0.02)
