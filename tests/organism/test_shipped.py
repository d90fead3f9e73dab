"""The organism's measured tables: whole, consistent with one another, and points of them measured again."""

from pathlib import Path

import pytest
import torch

import headtools as ht
import recipes
from headtools.organism import snapshots
from headtools.organism.batches import batches
from headtools.organism.evaluate import token_accuracy
from headtools.organism.shipped import LIVE_GATES, TABLES, heads_with_role, shipped, shipped_ablation
from recipes import growth, head_importance, orders, scratch, sweep

RECIPES = {path.stem for path in Path(recipes.__file__).parent.glob("*.py") if not path.stem.startswith("_")}
HEADS = [f"{layer}.{head}" for layer in range(6) for head in range(8)]


@pytest.fixture(scope="module")
def organism():
    torch.set_num_threads(1)
    return ht.load()


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_there_and_tells_its_recipe(table):
    frame = shipped(table)
    assert len(frame) > 0
    assert frame.attrs["recipe"] in RECIPES


def test_sweep():
    frame, summary = shipped("sweep"), shipped("sweep summary")
    assert LIVE_GATES.items() <= frame.attrs["setting"].items(), "as in the lessons"
    runs = {(row.over, row.penalty, row.seed) for row in frame.itertuples()}
    assert runs == {(over, p, s) for over, penalties in sweep.PENALTIES.items() for p in penalties for s in sweep.SEEDS}
    assert (summary.kept == frame.kept.map(len)).all()
    assert (summary[["encoder", "decoder", "cross"]].sum(axis=1) == summary.kept).all()
    assert frame.history.notna().equals(frame.seed == 0)
    for row in frame.itertuples():
        n = 48 if row.over == "encoder" else 144
        assert len(row.log_alpha) == n
        assert set(row.roles) <= {name.split()[1] for name in row.kept}
        assert all(low - 0.5 <= score <= high + 0.5 for score, low, high in (row.bleu,))


def test_rates():
    """Every rate with every seed; at the sweep's own rate these are runs of the sweep."""
    frame, runs = shipped("rates"), shipped("sweep").set_index(["over", "penalty", "seed"])
    plan = [(rate, p, s) for rate in sweep.RATES for p in sweep.RATES_AT for s in sweep.SEEDS]
    assert [(row.rate, row.penalty, row.seed) for row in frame.itertuples()] == plan
    own = frame[frame.rate == LIVE_GATES["gate_rate"]]
    assert len(own) == len(sweep.RATES_AT) * len(sweep.SEEDS)
    for row in own.itertuples():
        run = runs.loc[("encoder", row.penalty, row.seed)]
        assert (row.kept, row.bleu, row.accuracy, row.decided) == (run.kept, run.bleu, run.accuracy, run.decided)


def test_the_rate_of_the_sweep_closes_nothing_that_matters():
    """At penalty 0: what closes costs the model before next to no words, and is less than half of what 0.25 closes."""
    free = shipped("rates").query("penalty == 0").set_index("rate")
    own = free.loc[LIVE_GATES["gate_rate"]]
    assert all(high < 0.002 for _, _, high in own.cost)
    assert (48 - own.kept.map(len)).mean() < (48 - free.kept[0.25].map(len)).mean() / 2


def test_orders():
    frame = shipped("orders").set_index(["over", "order"])
    assert set(frame.index) == {(over, name) for over in orders.KINDS for name in orders.names(over)}
    best = frame.loc[("encoder", "gradient")].bleu[0]
    for (over, _), row in frame.iterrows():
        assert row.kept[0] == (144 if over == "all" else 48)
        assert len(row.kept) == len(row.bleu) == len(row.accuracy) == 11
        assert row.bleu[0] == best, "with all heads all rankings are one"
    for over in ("encoder", "all"):
        random = torch.tensor([[x[0] for x in frame.loc[(over, name)].bleu] for name in orders.RANDOM])
        for name in ("gradient", "leave one out", "learned"):
            scores = torch.tensor([x[0] for x in frame.loc[(over, name)].bleu])
            assert scores[3:6].mean() > random[:, 3:6].max(1).values.mean() + 5, (over, name)


def test_scratch_fits_the_sweep_that_its_heads_come_from():
    """The rows of the present gate rate are runs of the sweep; of an earlier sweep the table of rates has some."""
    runs = shipped("sweep").set_index(["over", "penalty", "seed"])
    rates = shipped("rates").set_index(["rate", "penalty", "seed"])
    compared = []
    for row in shipped("scratch").itertuples():
        over, penalty, seed, rate = (row.of[key] for key in ("over", "penalty", "seed", "gate_rate"))
        assert row.steps == growth.COMPARED
        if rate == LIVE_GATES["gate_rate"]:
            run = runs.loc[(over, penalty, seed)]
        elif (rate, penalty, seed) in rates.index:
            run = rates.loc[(rate, penalty, seed)]
        else:
            continue
        compared.append(row.of)
        assert row.kept == run.kept
        assert row.pruned == {"bleu": run.bleu, "accuracy": run.accuracy}
    assert compared


def test_growth():
    assert shipped("snapshots").step.tolist() == list(snapshots.STEPS)
    assert shipped("seeds").seed.tolist() == [1, 2, 3]
    assert shipped("sizes").heads.tolist() == [4, 8, 16]
    for part in ("snapshots", "seeds", "sizes"):
        for entry in shipped(part).itertuples():
            assert entry.bleu[1] <= entry.bleu[0] <= entry.bleu[2]
            assert entry.with_role == len(entry.carriers)
            for role, row in entry.roles.items():
                assert not row["passes"] or role in entry.carriers[row["head"]]
            assert entry.curve[0]["accuracy"] == entry.curve[0]["random"] == entry.accuracy


def test_gates_keep_a_quarter_of_the_heads_within_two_points():
    frame = shipped("gates")
    control = frame[(frame.weights == "encoder") & (frame.penalty == 0)].iloc[0]
    assert len(control.kept) >= 46
    assert ((frame.kept.map(len) <= 12) & (frame.bleu >= control.bleu - 2)).any()


def test_head_importance(organism):
    assert shipped("one head off")["head"].tolist() == HEADS
    pairs = shipped("pairs")
    assert list(zip(pairs.a, pairs.b, strict=True)) == [(a, b) for i, a in enumerate(HEADS) for b in HEADS[i + 1 :]]
    left = shipped("one head left")
    assert (left.groupby(["layer", "split"]).size() == 8).all()
    assert len(left) == 18 * 2 * 8
    scores = shipped_ablation(organism[0])
    assert len(scores) == 144


def test_latency_and_merging():
    timed = shipped("latency")
    assert set(timed.model) == {"organism", "Transformer-base"}
    assert (timed.low <= timed.high).all()
    assert timed.ideal.between(0, 1).all()
    for entry in shipped("merging").itertuples():
        assert [p["removed"] for p in entry.points] == [round(entry.heads * share) for share in (0.25, 0.5, 0.75)]


def test_sinks():
    runs = shipped("sinks")
    assert runs.groupby(["kind", "steps"], sort=False).seed.nunique().min() >= 5
    assert runs.steps.unique().tolist() == [800, 1600]
    assert (runs.loss > runs.attrs["best_loss"]).all()
    assert (runs[["first", "back", "itself", "sum"]].stack().between(0, 1 + 1e-4)).all()
    full = runs.kind.isin(["softmax", "output gate"])
    assert (runs["sum"][full] > 0.999).all()
    assert (runs.gate[runs.kind != "output gate"] == 1).all()


# --- points measured again --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_pair_and_its_heads_again(organism):
    """The heads of the greatest interaction, on all sentences: what each costs alone, and both."""
    assert head_importance.SENTENCES["pairs"] == head_importance.SENTENCES["ablation"]
    validation = ht.corpus("organism", "validation", head_importance.SENTENCES["pairs"])
    pairs = shipped("pairs")
    top = pairs.loc[pairs.interaction.idxmax()]
    a, b = (("encoder", *map(int, head.split("."))) for head in (top.a, top.b))
    row = ht.interaction(organism[0], batches(validation, 25), [(a, b)], progress=False).iloc[0]
    assert row.interaction == pytest.approx(top.interaction, abs=2e-3)
    for (*key, head), found in ((a, row.delta_a), (b, row.delta_b)):
        alone = shipped_ablation().values[tuple(key)][head].item()
        assert found == pytest.approx(alone, abs=1e-3, rel=1e-3)
        assert alone > 0.01


def test_a_pruning_curve_again(organism):
    """The gradient's ranking of the encoder, with 60 of the 200 sentences and half of the heads off."""
    model, _ = organism
    shipped_row = shipped("orders").set_index(["over", "order"]).loc[("encoder", "gradient")]
    heads = orders.ranking("gradient", model, ht.corpus("organism", "validation", 60), "encoder")[:24]
    assert len({tuple(head) for head in shipped_row["first"]} & set(heads)) >= 8
    with ht.ablate(model, heads):
        right = token_accuracy(model, ht.corpus("organism", "test", 100)).mean().item()
    assert right == pytest.approx(shipped_row.accuracy[5][0], abs=0.05)


def test_learned_ranking_cuts_what_the_sweep_cut(organism):
    run = shipped("sweep").query("over == 'encoder' and penalty == 0.05 and seed == 0").iloc[0]
    cut = orders.ranking("learned", organism[0], [], "encoder")[: 48 - len(run.kept)]
    assert not {f"{kind} {layer}.{head}" for kind, layer, head in cut} & set(run.kept)
    names = scratch.missing_heads({"over": "encoder", "kept": run.kept}, organism[0])
    assert len(names) == 48 - len(run.kept)
    assert heads_with_role() & {name.split()[1] for name in run.kept}
