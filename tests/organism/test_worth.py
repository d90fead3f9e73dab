"""What heads are worth: the shipped tables, points of them made again, and the command."""

import json

import pytest
import torch
from sacrebleu.metrics import BLEU

import headtools as ht
from headtools.organism import worth as module
from headtools.organism.accuracy import batches
from headtools.organism.publish import ASSETS
from headtools.organism.worth import (
    ABLATION,
    SENTENCES,
    SPLITS,
    ablation_scores,
    alone,
    markdown,
    only,
    worth,
    written,
)  # fmt: skip


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    return ht.load()


def test_the_shipped_tables_are_whole():
    told = worth()
    heads = [f"{layer}.{head}" for layer in range(6) for head in range(8)]
    assert told["sentences"] == SENTENCES
    assert list(told["alone"]) == heads
    assert list(told["pairs"]) == [f"{a} {b}" for i, a in enumerate(heads) for b in heads[i + 1 :]]
    assert set(told["only"]) == {f"{kind} {i}" for kind in ("encoder", "decoder", "cross") for i in range(6)}
    assert all(
        set(row) == set(SPLITS) and all(len(part) == 8 for part in row.values()) for row in told["only"].values()
    )
    every = [*told["alone"].values(), *(one for row in told["only"].values() for part in row.values() for one in part)]
    assert all(0 <= p <= 1 and -100 <= change <= 10 for change, p in every)
    assert all(90 < told["bleu"][split] <= 100 for split in SPLITS)


def test_the_shipped_scores_are_of_this_model(loaded):
    scores = ablation_scores(loaded[0])
    assert len(scores) == 144
    assert scores.name == "ablation"
    assert all((scores.low[key] <= scores.values[key]).all() for key in scores.values)
    with pytest.raises(ValueError, match="other heads"):
        ablation_scores(ht.load()[0].get_encoder())


def test_points_made_again(loaded):
    model, tokenizer = loaded
    told = worth()
    validation, test = (ht.corpus("organism", split, SENTENCES["alone"]) for split in SPLITS)
    found = ht.ablation(model, batches(validation, 25), sites=[("encoder", 5)], quiet=True)
    assert torch.allclose(found.values["encoder", 5], ablation_scores().values["encoder", 5], atol=1e-3, rtol=1e-3)
    pair = max(told["pairs"], key=told["pairs"].get)
    a, b = (("encoder", *map(int, head.split("."))) for head in pair.split())
    row = ht.interaction(model, batches(validation[: SENTENCES["pairs"]], 25), [(a, b)], quiet=True).iloc[0]
    assert row.interaction == pytest.approx(told["pairs"][pair], abs=2e-3)
    head, (change, p) = min(told["alone"].items(), key=lambda item: item[1])
    layer, number = map(int, head.split("."))
    texts = [written(model, tokenizer, test, heads) for heads in ([], [("encoder", layer, number)])]
    again = ht.paired_bootstrap(*texts, [" ".join(s.target) for s in test])
    assert again.difference == pytest.approx(change, abs=0.5)
    assert again.p == p == 0


def test_changes_are_those_of_sacrebleu(loaded):
    model, tokenizer = loaded
    few = ht.corpus("organism", limit=6)
    wanted = [[" ".join(s.target) for s in few]]
    metric = BLEU(tokenize="none", force=True)

    def bleu(heads):
        with ht.ablate(model, heads):
            return metric.corpus_score(ht.translate(model, tokenizer, [s.words for s in few]), wanted).score

    others = {kept: [("encoder", 5, head) for head in range(8) if head != kept] for kept in range(8)}
    rows = only(model, tokenizer, few, keys=[("encoder", 5)])
    assert list(rows) == ["encoder 5"]
    for kept, (change, _) in enumerate(rows["encoder 5"]):
        assert change == pytest.approx(bleu(others[kept]) - bleu([]), abs=1e-3)
    changes = alone(model, tokenizer, few[:3])
    few, wanted = few[:3], [wanted[0][:3]]
    assert changes["5.3"][0] == pytest.approx(bleu([("encoder", 5, 3)]) - bleu([]), abs=1e-3)
    assert changes["5.3"][0] < -1


def test_translations_are_made_once(loaded, tmp_path, monkeypatch):
    model, tokenizer = loaded
    few, head = ht.corpus("organism", limit=2), ("encoder", 5, 1)
    first = written(model, tokenizer, few, [head], tmp_path / "run")
    whole = written(model, tokenizer, few, run=tmp_path / "run")
    assert first != whole
    monkeypatch.setattr(ht, "translate", lambda *given: pytest.fail("translated again"), raising=False)
    assert written(model, tokenizer, few, [head], tmp_path / "run") == first
    assert written(model, tokenizer, few, (), tmp_path / "run") == whole
    assert sorted(len(json.loads(file.read_text())["off"]) for file in (tmp_path / "run").iterdir()) == [0, 1]
    with pytest.raises(pytest.fail.Exception, match="translated again"):
        written(model, tokenizer, few[:1], [head], tmp_path / "run")


def test_the_command(tmp_path, capsys, monkeypatch):
    """With translations that fall apart with the number of heads that are off, and with one pair."""

    def fake(model, tokenizer, sentences, heads=(), run=None):
        assert run in (tmp_path / "run" / "alone", tmp_path / "run" / "only")
        return [" ".join(s.target[len(heads) :]) for s in sentences]

    pairs = [(("encoder", 0, 1), ("encoder", 2, 3))]
    few = module.interaction
    monkeypatch.setattr(module, "written", fake)
    monkeypatch.setattr(module, "interaction", lambda *given, sites, run: few(*given, pairs, run=run, quiet=True))
    module.main(["--limit", "3", "--assets", str(tmp_path), "--run", str(tmp_path / "run")])
    told = json.loads((tmp_path / "worth.json").read_text(encoding="utf-8"))
    assert told["sentences"] == dict.fromkeys(SENTENCES, 3)
    assert told["bleu"] == {"validation": 100, "test": 100}
    assert set(told["pairs"]) == {"0.1 2.3"}
    assert told["alone"]["0.0"][0] > told["only"]["cross 5"]["test"][0][0]
    scores = ht.load_scores(tmp_path / ABLATION.name, ht.load()[0], {"model": ht.load()[0], "sentences": 3})
    assert len(scores) == 144
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"ablation", "pairs"}
    said = capsys.readouterr().out
    assert said.startswith("| head off | BLEU | p |")
    assert said.count("\n| encoder ") == said.count("\n| cross ") == 6


def test_the_card_says_what_the_command_wrote():
    told, card = worth(), ASSETS.joinpath("README.md").read_text(encoding="utf-8")
    assert markdown(told) in card
    costs = sorted((change, head) for head, (change, _) in told["alone"].items())
    spoken = [f"{head} {'costs ' if i == 0 else ''}{-change:.1f}" for i, (change, head) in enumerate(costs[:5])]
    assert ", ".join(spoken) in card
    assert f"the median of the 48 is −{-(costs[23][0] + costs[24][0]) / 2:.2f}." in card
    assert f"{sum(p < 0.01 for _, p in told['alone'].values())} changes\nhave p < .01" in card
    pair = max(told["pairs"], key=told["pairs"].get)
    assert " and\n".join(pair.split()) + f" ({told['pairs'][pair]:.2f} nats)" in card
    worse = sum(
        changes["test"][head][0] < changes["validation"][head][0]
        for changes in told["only"].values()
        for head in [max(range(8), key=lambda h: changes["validation"][h][0])]
    )
    assert worse > 9
