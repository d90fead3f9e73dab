"""The measures of the second edition: rules against what they should say, tables whole, the card as the results."""

import json

import pandas as pd
import pytest
import torch

from headtools.roles.sentence import Sentence
from recipes._publish import make_tokenizer, publish
from recipes._results import read
from recipes.second_edition import card, measure
from recipes.second_edition._training_model import TrainingModel
from recipes.second_edition.batches import word_ids
from recipes.second_edition.language import corpus
from recipes.second_edition.measures import controls, coreference, cross, goals, layers, pruning, roles, scores
from recipes.second_edition.measures._words import by_sentence, losses, right_words, share


@pytest.fixture(scope="module")
def untrained():
    torch.manual_seed(0)
    return TrainingModel().export().eval(), make_tokenizer(word_ids())


def rendered(module, results):
    """A table of results that have been through JSON."""
    return module.markdown({"seed 1": json.loads(json.dumps(results))})


TEXT = "near the queen the sailor painted the doctor of Lorana because she slept ."
TOLD = Sentence(
    tuple(TEXT.split()),
    (3, 3, 6, 5, 6, 0, 8, 6, 10, 8, 13, 13, 6, 6),
    ("case", "det", "obl", "det", "nsubj", "root", "det", "obj", "case", "nmod", "mark", "nsubj", "advcl", "punct"),
    ("ADP", "DET", "NOUN", "DET", "NOUN", "VERB", "DET", "NOUN", "ADP", "PROPN", "SCONJ", "PRON", "VERB", "PUNCT"),
    (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0),
)


def test_the_surface_rules():
    (_, _, pronoun), *_ = coreference.pronouns([TOLD])
    named = {name: TOLD.words[coreference.rule(name, [pronoun])[0]] for name in
             ("nearest", "nearest fitting", "first fitting", "grammar")}  # fmt: skip
    assert named == {"nearest": "Lorana", "nearest fitting": "Lorana", "first fitting": "queen", "grammar": "sailor"}
    assert pronoun.cell == "nsubj, meant: nsubj"


def test_look_up_learns_which_noun_and_which_place():
    """Fitted on 400 sentences, both beat chance on those they were fitted on, and places help."""
    given = [p for _, _, p in coreference.pronouns(corpus("train", 400))]
    gold = torch.tensor([p.noun for p in given])
    plain, placed = (
        share(coreference.rule(name, given, fitted_on=400) == gold) for name in ("look-up", "look-up with places")
    )
    chance = sum(1 / len(p.places) for p in given) / len(given)
    assert chance + 0.1 < plain < placed


def test_depth_counts_what_stands_inside_something():
    assert scores.depth(TOLD) == 1
    nested = Sentence(("a", "b", "c", "d"), (0, 1, 2, 3), ("root", "nmod", "acl", "obj"), ("NOUN",) * 4, (0,) * 4)
    assert scores.depth(nested) == 2


def test_the_grid_has_what_it_says():
    for (length, deep), some in scores.grid(cell=5, drawn=300).items():
        assert all(length[0] <= len(s.words) <= length[1] and max(1, scores.depth(s)) == deep for s in some)
        assert len(some) <= 5


def test_the_stricter_rule():
    """Half of the looks must hit, and the interval must clear the baseline with all pairs allowed for."""
    rows = [(0.9, 500, 0.5, True), (0.45, 500, 0.1, True), (0.62, 60, 0.5, True), (0.9, 500, 0.5, False)]
    frame = pd.DataFrame(rows, columns=["score", "n", "baseline", "found"])
    assert roles.strict(frame).tolist() == [True, False, False, False]


def test_backup_pairs_cost_more_than_three_times_the_sum():
    pairs = [["a", "b", 0.01, 0.01, 0.07], ["a", "c", 0.01, 0.02, 0.08], ["b", "c", -0.1, 0.001, 0.01]]
    assert [(a, b) for a, b, *_ in layers.backups(pairs)] == [("a", "b")]


def test_words_are_counted_sentence_by_sentence(untrained):
    model, _ = untrained
    some = corpus("test", 3)
    together, apart = losses(model, some), torch.cat([losses(model, [s]) for s in some])
    assert torch.allclose(together, apart, atol=1e-4)
    assert right_words(model, some).shape == together.shape
    means = torch.stack([losses(model, [s]).mean() for s in some])
    assert torch.allclose(by_sentence(together, some), means, atol=1e-4)


def test_scores_and_controls(untrained, monkeypatch):
    copied = lambda _model, _tokenizer, some: [" ".join(words) for words in some]  # noqa: E731
    monkeypatch.setattr(scores.ht, "translate", copied, raising=False)
    found = scores.measure(*untrained, limit=5)
    text = rendered(scores, found)
    assert "| seed 1 | hard | 5 |" in text
    assert "| 20 to 26 |" in text
    assert found["phenomena"].keys() == controls.measure(*untrained, limit=5)["phenomena"].keys()
    assert rendered(controls, controls.measure(*untrained, limit=5)).count("\n") == 2


def test_roles(untrained, monkeypatch):
    monkeypatch.setattr(roles, "TWINS", 1)
    found = roles.measure(*untrained, limit=12)
    assert "previous word (offset −1)" in rendered(roles, found)
    assert found["stricter rule"]["heads"] <= found["first rule"]["heads"]
    assert len(found["untrained"]) == 1


def test_coreference(untrained):
    found = coreference.measure(*untrained, limit=15)
    by_name = {row["name"]: row for row in found["rules"]}
    assert by_name["first fitting"]["first fitting wrong"] == 0
    assert sum(found["cells"].values()) == found["pronouns"]
    assert "rule: nearest fitting" in rendered(coreference, found)


def test_cross_and_pruning(untrained, monkeypatch):
    monkeypatch.setattr(pruning, "bleu", lambda *_: (1.0, 0.0, 2.0))  # an untrained model writes to the last word
    errors = cross.measure(*untrained, limit=4)["errors"]
    assert len(errors) == 48
    assert rendered(cross, {"errors": errors}).startswith("| model | align (AER < 0.1) |")
    found = pruning.measure(*untrained, limit=3, draws=1)
    for one in found["kinds"].values():
        assert one["curves"]["gradient"][0] == one["curves"]["random 0"][0], "with all heads, orders agree"
        assert one["curves"]["gradient"][-1] == one["curves"]["random 0"][-1], "and without any"
    assert "1 random orders: mean, best" in rendered(pruning, found)


def test_layers(untrained):
    found = layers.measure(*untrained, limit=5, top=2)
    assert [len(falls) for falls in found["off"].values()] == [6, 6, 6]
    assert len(found["pairs"]["encoder"]) == 1
    assert "layers 0 and 1" in rendered(layers, found)


def test_the_command_keeps_results_by_name_and_writes_the_card(untrained, tmp_path, capsys, monkeypatch):
    publish(untrained[0], tmp_path / "model", word_ids())
    readme = tmp_path / "README.md"
    readme.write_text("before\n\n<!-- controls -->\nold\n<!-- end of controls -->\n\nafter\n")
    shown = dict.fromkeys(controls.SHOWN, 0.5)

    def loss(model, _tokenizer, limit):
        mean = losses(model, corpus("test", limit)).mean().item()
        return {"test": [mean] * 3, "hard": [mean] * 3, "phenomena": shown}

    monkeypatch.setattr(controls, "measure", loss)
    for name, attention in (("b", "learned"), ("a", "none")):
        measure.main(["controls"], tmp_path / "model", name, attention, 5, tmp_path / "results", readme)
    found = read(tmp_path / "results" / "controls.json")
    assert list(found) == ["a", "b"]
    assert found["a"] != found["b"]
    text = readme.read_text("utf-8")
    assert "| a | " in text
    assert "old" not in text
    assert text.startswith("before\n\n<!-- controls -->\n\n| run |")
    assert text.endswith("\n\nafter\n")
    assert "| run |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no table 'bleu'"):
        measure.module("bleu")


def test_goals_are_judged_by_the_results():
    heads = {"0.1": ["offset -1"], "1.2": ["offset +1", "det up", "amod up", "nsubj up", "obj up", "advmod up"]}
    best = [{"role": "name", "head": "2.0", "score": 0.7, "holds": True}]
    row = {"name": "first fitting", "all": 0.6, "head": "3.3"}
    found = {
        "scores": {"seed 1": {"splits": {"test": {"bleu": [95.0, 94.0, 96.0]}}}},
        "roles": {"seed 1": {"heads": heads, "best": best}},
        "coreference": {"seed 1": {"rules": [row], "heads": [row | {"all": 0.75}]}},
        "cross": {"seed 1": {"errors": {"0.0": 0.0, "0.1": 0.2, "0.2": 0.6}}},
        "pruning": {"seed 1": {"kinds": {kind: {"bleu": [[90, 0, 0], [after, 0, 0]]} for kind, after in
                                         (("cross", 60), ("encoder", 50))}}},
    }  # fmt: skip
    text = goals.markdown(found)
    said = dict(line.strip("| ").split(" | ", 1) for line in text.splitlines()[2:])
    verdicts = [said[goal].split(":")[0] for goal in goals.GOALS]
    yes, no = "**yes**", "**no**"
    assert verdicts == [yes, yes, yes, yes, yes, no, no, yes, no, yes, "–"]
    assert "cross 30.0, encoder 40.0" in text
    assert "5 (head 1.2)" in text


def test_the_card_says_what_the_results_say():
    text = card.README.read_text("utf-8")
    assert card.rendered(text) == text
