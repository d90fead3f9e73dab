"""Orders: each name gives the order it promises, a curve is what ablating gives, and finished curves stay."""

import json

import pytest
import torch

import headtools as ht
from headtools.organism import accuracy, orders
from headtools.organism.sweep import sweep


@pytest.fixture(scope="module")
def organism():
    return ht.load()


FEW = ht.corpus("organism", "validation", 6)


def test_orders_of_scores(organism):
    model, _ = organism
    batches = accuracy.batches(FEW)
    only = ["encoder"]
    expected = {
        "confidence": ht.confidence(model, batches, sites=only),
        "gradient": ht.gradient(model, batches, sites=only),
        "gradient by layer": ht.gradient(model, batches, sites=only, normalise="layer"),
        "leave one out": ht.ablation(model, batches, sites=only, quiet=True),
    }
    for name, scores in expected.items():
        assert orders.order(name, model, FEW, "encoder") == scores.order(), name
    assert len({tuple(scores.order()) for scores in expected.values()}) == 4
    with pytest.raises(KeyError, match="magnitude"):
        orders.order("magnitude", model, FEW, "encoder")


def test_every_order_names_every_head_once(organism):
    model, _ = organism
    for over, total in (("cross", 48), ("all", 144)):
        for name in ("random 3", "confidence", "gradient"):
            found = orders.order(name, model, FEW, over)
            assert len(found) == len(set(found)) == total
            assert over == "all" or {head[0] for head in found} == {over}


def test_again_starts_as_the_plain_order_and_differs_later(organism):
    model, _ = organism
    plain, again = (orders.order(name, model, FEW, "encoder") for name in ("gradient", "gradient again"))
    assert again[:4] == plain[:4]
    assert again != plain
    assert set(again) == set(plain)
    gone = again[:4]
    with ht.ablate(model, gone):
        scores = ht.gradient(model, accuracy.batches(FEW), sites=["encoder"])
    assert again[4:8] == [head for head in scores.order() if head not in gone][:4]


def test_learned_is_log_alpha_of_the_sweep(organism):
    model, _ = organism
    run = next(r for r in sweep() if (r["over"], r["penalty"], r["seed"]) == ("encoder", 0.05, 0))
    gone = orders.order("learned", model, [], "encoder")[: 48 - len(run["kept"])]
    assert not {f"{kind} {layer}.{head}" for kind, layer, head in gone} & set(run["kept"])
    assert len(orders.learned(model, "all")) == 144


def test_a_curve_is_what_ablating_gives(organism):
    model, tokenizer = organism
    row = orders.measure(model, tokenizer, "random 0", "encoder", 1, 4)
    test = ht.corpus("organism", "test", 4)
    assert row["kept"] == [48, 43, 38, 34, 29, 24, 19, 14, 10, 5, 0]
    with ht.ablate(model, orders.order("random 0", model, [], "encoder")[:24]):
        assert row["accuracy"][5][0] == pytest.approx(accuracy.token_accuracy(model, test).mean().item(), abs=1e-4)
        assert row["bleu"][5][0] == pytest.approx(orders.bleu(model, tokenizer, test)[0], abs=0.01)
    assert row["first"] == [list(head) for head in orders.order("random 0", model, [], "encoder")[:10]]


def test_the_command_makes_what_is_missing(tmp_path, monkeypatch):
    made, file = [], tmp_path / "orders.json"

    def measured(_model, _tokenizer, name, over, *limits):
        made.append((over, name, limits))
        return {"over": over, "order": name, "kept": [48, 24, 0], "bleu": [[9.0] * 3] * 3}

    monkeypatch.setattr(orders, "measure", measured)
    words = ["--over", "cross", "--limit", "2", "3", "--file", str(file)]
    orders.main([*words, "--order", "gradient"])
    orders.main(words)
    assert made == [("cross", name, (2, 3)) for name in ("gradient", *orders.RANDOM)]
    assert json.loads(file.read_text())["sentences"] == [2, 3]
    assert [row["order"] for row in orders.orders(file)] == ["gradient", *orders.RANDOM]


# --- what ships -------------------------------------------------------------------------------------------------------

CURVES = {(row["over"], row["order"]): row for row in orders.orders()}


def test_every_curve_is_there_and_sound():
    assert set(CURVES) == {(over, name) for over in orders.KINDS for name in orders.names(over)}
    for row in CURVES.values():
        assert row["kept"][0] == (144 if row["over"] == "all" else 48)
        assert len(row["kept"]) == len(row["bleu"]) == len(row["accuracy"]) == 11
        assert row["bleu"][0] == CURVES["encoder", "gradient"]["bleu"][0], "with all heads all orders are one"
        # sacreBLEU's interval lies around the mean of its draws, which may miss the score by a little
        assert all(low - 0.5 <= score <= high + 0.5 for score, low, high in row["bleu"])


def test_orders_are_better_than_chance():
    for over in ("encoder", "all"):
        blind = torch.tensor([[x[0] for x in CURVES[over, name]["bleu"]] for name in orders.RANDOM])
        for name in ("gradient", "leave one out", "learned"):
            found = torch.tensor([x[0] for x in CURVES[over, name]["bleu"]])
            assert found[3:6].mean() > blind[:, 3:6].max(1).values.mean() + 5, (over, name)


def test_a_shipped_curve_can_be_made_again(organism):
    """The gradient's order of the encoder, with 60 of the 200 sentences and half of the heads off."""
    model, _ = organism
    gone = orders.order("gradient", model, ht.corpus("organism", "validation", 60), "encoder")[:24]
    told = {tuple(head) for head in CURVES["encoder", "gradient"]["first"]}
    assert len(told & set(gone)) >= 8
    with ht.ablate(model, gone):
        right = accuracy.token_accuracy(model, ht.corpus("organism", "test", 100)).mean().item()
    assert right == pytest.approx(CURVES["encoder", "gradient"]["accuracy"][5][0], abs=0.05)
