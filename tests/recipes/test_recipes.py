"""Each recipe runs to its end on a handful of sentences and writes what ``shipped`` reads."""

import json
import os
import subprocess
import sys

import pytest
import torch

import headtools as ht
from headtools.organism import shipped as tables
from headtools.organism.evaluate import bleu, token_accuracy
from recipes import coverage, gates, growth, head_importance, latency, merging, orders, scorecard, scratch, sinks, sweep
from recipes._parallel import parallel_map
from recipes._results import read, replace_row, update
from recipes.train import Recipe

pytestmark = pytest.mark.full  # each recipe once, with less of everything: whoever changes one runs this file


@pytest.fixture(scope="module")
def organism():
    return ht.load()


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """A folder of results of our own, which ``shipped`` reads instead of the package's."""
    for file in ("sweep.json", "scores.json"):
        (tmp_path / file).write_bytes((tables.ASSETS / file).read_bytes())
    monkeypatch.setattr(tables, "ASSETS", tmp_path)
    return tmp_path


def test_coverage_is_what_the_docstring_says():
    populations = {name: coverage.DISTRIBUTIONS[name] for name in ("lognormal", "95 % zeros")}
    again = coverage.lines(coverage.shown(coverage.table(populations, (5, 20))), (5, 20))
    stated = {line[:23].strip(): line[23:].split() for line in coverage.intervals.__doc__.splitlines()}
    for line in again.splitlines()[3:-1]:
        name, *cells = line.rsplit(maxsplit=2)
        assert cells == [stated[name][0], stated[name][2]], name


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_gates(assets, capsys):
    gates.main(penalty=[0.0, 0.02], seed=[1], steps=1, limit=4, file=assets / "pruning.json", run=assets / "runs")
    frame = tables.shipped("gates")
    assert frame.penalty.tolist() == [0, 0.02]
    assert frame.kept.map(len).tolist() == [48, 48]
    assert tables.shipped("encoder curve").kept.tolist() == [48, 42, 36, 24, 18, 12, 6, 0]
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("| encoder, gates | 1 | 0.02 | 1 | 48 | ")


def half_closed():
    """Log alpha by which the first four heads of every encoder layer stay and the others go."""
    return {("encoder", layer): torch.tensor([4.0] * 4 + [-4.0] * 4) for layer in range(6)}


def test_a_run_of_the_sweep_is_what_cutting_gives(organism):
    row = sweep.one_run("encoder", 0.05, seed=3, sentences=6, steps=2, start=half_closed())
    assert row["kept"] == [f"encoder {layer}.{head}" for layer in range(6) for head in range(4)]
    fit = sweep.train_gates(organism[0], "encoder", 0.05, 3, steps=2, start=half_closed())
    with ht.ablate(fit.model.eval(), {("encoder", layer): [4, 5, 6, 7] for layer in range(6)}):
        right = token_accuracy(fit.model, ht.corpus("organism", "test", 6)).mean().item()
    assert row["accuracy"][0] == pytest.approx(right, abs=1e-4)
    assert (row["moments"], row["decided"]) == ([0, 1, 2], 1.0)
    assert row["history"][0][:8] == [4.0] * 4 + [-4.0] * 4
    assert json.loads(json.dumps(row)) == row


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_the_sweep_makes_only_what_is_missing(assets, monkeypatch):
    made, rows, real = [], {}, sweep.one_run

    def counted(**options):
        """Another penalty gives the same row after one step: each rate is trained once."""
        made.append((options["over"], options["penalty"], options["gate_rate"]))
        rate = options["gate_rate"]
        if rate not in rows:
            rows[rate] = real(**options)
        return rows[rate] | {"penalty": options["penalty"]}

    monkeypatch.setattr(sweep, "one_run", counted)
    own = tables.LIVE_GATES["gate_rate"]
    settings = {"seed": [0], "steps": 1, "limit": 5, "runs": assets / "runs", "file": assets / "sweep.json"}
    sweep.main(over=["encoder"], penalty=[0.05], rate=[], **settings)
    sweep.main(over=["encoder"], penalty=[0.05, 0.1], rate=[own, 0.5], **settings)
    assert made == [
        ("encoder", 0.05, own),
        ("encoder", 0.1, own),
        ("encoder", 0, own),
        ("encoder", 0, 0.5),
        ("encoder", 0.05, 0.5),
    ]
    assert tables.shipped("sweep summary").penalty.tolist() == [0.05, 0.1]
    rates = tables.shipped("rates")
    assert list(zip(rates.rate, rates.penalty, strict=True)) == [(own, 0), (own, 0.05), (0.5, 0), (0.5, 0.05)]
    assert (rates.kept.map(len) == 48).all()
    assert (rates.cost.map(max) == 0).all(), "nothing has closed"
    with pytest.raises(ValueError, match="use another folder: --runs NEW"):
        sweep.main(over=["encoder"], penalty=[0.05], **(settings | {"limit": 2}))


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_scratch(assets, monkeypatch, capsys):
    real = scratch.train_gates
    monkeypatch.setattr(scratch, "train_gates", lambda *args, **options: real(*args, **options, steps=1))
    tiny = {"save_every": 2, "chunk": 64, "tokens": 128, "validate_on": 4}
    monkeypatch.setattr(scratch, "Recipe", lambda **settings: Recipe(**settings, **tiny))
    for seed in (1, 2):
        scratch.main(penalty=[0.5], seed=[seed], steps=2, limit=5, runs=assets / "runs", file=assets / "scratch.json")
    rows = tables.shipped("scratch")
    assert rows.seed.tolist() == [1, 2]
    run = tables.shipped("sweep").query("over == 'encoder' and penalty == 0.5 and seed == 0").iloc[0]
    assert all(kept == run.kept for kept in rows.kept)
    assert capsys.readouterr().out.count(f"| {len(run.kept)} |") == 3
    model = scratch.train_on(run.to_dict(), assets / "runs" / f"encoder-0.5-0-steps2-seed{1}", steps=2)
    sites = ht.sites(model)["encoder"]
    kept = [f"encoder {site.layer}.{head}" for site in sites if not site.empty for head in site.original]
    assert kept == run.kept
    assert all(not site.out.weight.any() for site in sites if site.empty), "a silent head stays silent"


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_orders(assets, organism, monkeypatch):
    model, tokenizer = organism
    file = assets / "orders.json"
    orders.main(over=["cross"], order=["random 0"], limit=(1, 4), file=file)
    row = tables.shipped("orders").iloc[0]
    assert row.kept == [48, 43, 38, 34, 29, 24, 19, 14, 10, 5, 0]
    test = ht.corpus("organism", "test", 4)
    with ht.ablate(model, orders.ranking("random 0", model, [], "cross")[:24]):
        assert row.accuracy[5][0] == pytest.approx(token_accuracy(model, test).mean().item(), abs=1e-4)
        assert row.bleu[5][0] == pytest.approx(bleu(model, tokenizer, test)[0], abs=0.01)
    made = []
    monkeypatch.setattr(
        orders,
        "pruning_curve",
        lambda _model, _tokenizer, name, over, *_: (
            made.append(name) or {"over": over, "order": name, "kept": [48, 24, 0], "bleu": [[9.0] * 3] * 3}
        ),
    )
    orders.main(over=["cross"], limit=(1, 4), file=file)
    assert made == [name for name in orders.names("cross") if name != "random 0"]


def test_a_ranking_scored_anew_starts_as_the_plain_one(organism):
    few = ht.corpus("organism", limit=2)
    plain, again = (orders.ranking(name, organism[0], few, "encoder") for name in ("gradient", "gradient again"))
    assert again[:4] == plain[:4]
    assert again != plain
    assert set(again) == set(plain)


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_head_importance(assets, monkeypatch, capsys):
    """With translations that fall apart with the number of heads that are off, and with one pair."""

    def fake(model, tokenizer, sentences, heads=()):
        return [" ".join(s.target[len(list(heads)) :]) for s in sentences]

    pairs, real = [(("encoder", 0, 1), ("encoder", 2, 3))], ht.interaction
    monkeypatch.setattr(head_importance, "translations", fake)
    one_pair = lambda *args, sites, checkpoint: real(*args, pairs, progress=False)  # noqa: E731
    monkeypatch.setattr(head_importance.ht, "interaction", one_pair, raising=False)
    head_importance.main(limit=5, assets=assets)
    assert tables.shipped("pairs").values.tolist()[0][:2] == ["0.1", "2.3"]
    assert tables.shipped("one head off").attrs["bleu"] == {"validation": 100, "test": 100}
    assert tables.shipped_ablation(ht.load()[0]).top(1)
    output = capsys.readouterr().out
    assert output.count("\n| encoder ") == output.count("\n| cross ") == 6


def test_growth(assets, monkeypatch):
    monkeypatch.setattr(
        growth,
        "measure",
        lambda model, tokenizer, limit: {
            "bleu": [1, 0, 2],
            "hard": [0, 0, 0],
            "with_role": limit,
            "heads_total": 48,
            "roles": {},
        },
    )
    growth.main(steps=[500, 0], limit=2, file=assets / "growth.json")
    growth.main(steps=[250], limit=2, file=assets / "growth.json")
    assert tables.shipped("snapshots").step.tolist() == [0, 250, 500]
    with pytest.raises(FileNotFoundError, match="no finished training"):
        growth.main(steps=[], runs=[assets], file=assets / "growth.json")


def test_scorecard(assets, organism, monkeypatch):
    groups = tables.shipped("role use")
    monkeypatch.setattr(scorecard, "role_use", lambda *_: (0.5, groups))
    scorecard.main(split=["test"], limit=12, file=assets / "scores.json")
    assert tables.shipped("translation").sentences.tolist() == [12]
    assert len(tables.shipped("roles")) > 20


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_merging(assets, monkeypatch):
    monkeypatch.setattr(merging, "FIT_ON", 4)
    monkeypatch.setattr(merging, "MEASURED_ON", 5)
    entry = {"model": "other", "kind": "cross", "heads": 48, "accuracy": 1, "points": []}
    update(assets / "merging.json", lambda _: {"models": [entry]})
    real = merging.measure
    monkeypatch.setattr(
        merging, "measure", lambda model, kind, share: {"kind": kind} if kind == "cross" else real(model, kind, share)
    )
    monkeypatch.setattr(merging, "markdown", lambda entries: "")
    merging.main(models=["shipped"], share=[0.25], file=assets / "merging.json")
    frame = tables.shipped("merging")
    assert frame.model.tolist() == ["other", "shipped", "shipped"]
    assert frame.points[1][0]["removed"] == 12


def test_latency(assets, monkeypatch):
    for name, few in (("LENGTHS", (8,)), ("ROWS", (1,)), ("KEPT", (4,))):
        monkeypatch.setattr(latency, name, few)
    real = latency.measure
    monkeypatch.setattr(latency, "measure", lambda turns: real(turns, (8,), (1,), (4,)))
    latency.main(turns=2, file=assets / "latency.json")
    assert tables.shipped("latency").kept.tolist() == [4, 4]


def test_multiplications_against_a_count():
    """The formula beside numbers of multiplications counted by torch's own profiler of matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    model = ht.load()[0]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.get_encoder()(input_ids=torch.ones(1, 16, dtype=torch.long), attention_mask=torch.ones(1, 16))
    expected = 6 * latency.multiplications(8, 16, 128, 256, 16)
    assert counter.get_total_flops() == 2 * expected


def test_sinks(assets, monkeypatch, capsys):
    monkeypatch.setattr(sinks, "TEST_ROWS", 32)
    for few in (1, 2):  # the second command trains what is missing
        sinks.main(seeds=few, steps=[1, 2], file=assets / "sinks.json")
    rows = tables.shipped("sinks")
    assert rows[["kind", "seed", "steps"]].values.tolist() == [
        [kind, seed, steps] for kind in sinks.KINDS for seed in (0, 1) for steps in (1, 2)
    ]
    assert capsys.readouterr().out.count("2 steps: loss") == len(rows) / 2, "each was trained once"
    trained = []
    monkeypatch.setattr(sinks, "run", lambda kind, seed, steps: trained.append((kind, seed)) or [])
    sinks.main(seeds=3, steps=[1, 2], file=assets / "sinks.json")
    assert trained == [(kind, 2) for kind in sinks.KINDS]
    with pytest.raises(Exception, match="expected one of 'softmax', 'off by one'"):
        sinks.main(kind=["sigmoid"], file=assets / "sinks.json")


def test_the_weights_of_each_kind_against_their_formulas():
    scores = torch.tensor([[[0.5, -torch.inf], [1.0, -2.0]]])
    raised = scores.exp()
    formulas = {"softmax": 0.0, "output gate": 0.0, "off by one": 1.0, "learned sink": torch.tensor(0.7).exp()}
    for kind, more in formulas.items():
        model = sinks.OneHead(kind)
        model.sink.data.fill_(0.7)
        torch.testing.assert_close(model.attend(scores), raised / (more + raised.sum(-1, keepdim=True)))


def test_what_a_head_that_copies_and_rests_measures(monkeypatch):
    """Scores set by hand: all weight on the first token, at triggers on the word before; the values decide the rest."""
    monkeypatch.setattr(sinks, "TEST_ROWS", 32)
    model = sinks.OneHead("softmax")
    words = sinks.sequences(sinks.TEST_ROWS, torch.Generator().manual_seed(2))[:, :-1]
    wanted = torch.where(sinks.is_trigger(words), torch.arange(sinks.LENGTH) - 1, 0)
    hand_set = torch.nn.functional.one_hot(wanted, sinks.LENGTH).float()
    model.attend = lambda scores: torch.where(scores.isinf(), 0.0, hand_set)
    rows = sinks.measure(model)
    assert (rows["first"], rows["first_trigger"], rows["back"], rows["itself"]) == pytest.approx((1, 0, 1, 0))
    model.output.weight.data.zero_()  # what a head cannot write costs nothing
    rows = sinks.measure(model)
    assert (rows["rise"], rows["written"], rows["low"], rows["high"]) == (0, 0, 0, 0)
    assert rows["loss"] > sinks.best_loss()


def test_nobody_undercuts_the_best_loss_and_the_language_reaches_it():
    words = sinks.sequences(2_000, torch.Generator().manual_seed(5))
    seen, following = words[:, 1:-1], words[:, 2:]
    after_trigger = sinks.is_trigger(words)[:, 1:-1]
    losses = -sinks.bigrams()[seen, following].log()
    assert (following == words[:, :-2])[after_trigger].all()
    assert losses.masked_fill(after_trigger, 0).mean().item() == pytest.approx(sinks.best_loss(), abs=0.01)


# --- what they share --------------------------------------------------------------------------------------------------


@pytest.mark.weekly  # long, and run by whoever changes the recipe
def test_two_commands_that_add_to_one_file_lose_nothing(tmp_path):
    code = "import sys; from pathlib import Path; from recipes._results import update\n" + (
        "for i in range(20): update(Path(sys.argv[1]), lambda old: {**old, f'{sys.argv[2]}{i}': i})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, str(tmp_path / "a.json")]
    both = [subprocess.Popen([*command, who], env=environment) for who in "ab"]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len(read(tmp_path / "a.json")) == 40


def test_a_row_takes_its_place():
    rows = []
    for weights, seed, penalty in (("all", 0, 0.1), ("encoder", 1, 0), ("encoder", 0, 0.1), ("encoder", 0, 0.1)):
        row = {"weights": weights, "steps": 9, "seed": seed, "penalty": penalty, "new": len(rows)}
        rows = replace_row(rows, row, gates._order)
    assert [(r["weights"], r["seed"], r["new"]) for r in rows] == [("encoder", 0, 3), ("encoder", 1, 1), ("all", 0, 0)]


def test_parallel_map_keeps_the_order():
    assert list(parallel_map(pow, [(2, 3), (3, 2)], jobs=2)) == [8, 9]
