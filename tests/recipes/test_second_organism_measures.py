"""The measures of the second organism: rules against what they should say, tables whole, the card as the results."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import pytest
import torch

from headtools.organism.second.language import corpus
from headtools.roles.sentence import Sentence
from recipes._publish import make_tokenizer, publish
from recipes._results import read
from recipes.second_organism import card, measure
from recipes.second_organism._training_model import TrainingModel
from recipes.second_organism.batches import word_ids
from recipes.second_organism.measures import (
    _gated,
    controls,
    coreference,
    cross,
    draws,
    kinds,
    layers,
    owner,
    pairs,
    pruning,
    rates,
    roles,
    scores,
    sweep,
    use,
)
from recipes.second_organism.measures._words import by_sentence, losses, right_words, share

pytestmark = pytest.mark.full  # as tests/recipes/test_recipes.py


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
    named = {
        name: TOLD.words[coreference.rule(name, [pronoun])[0]]
        for name in ("nearest", "nearest fitting", "first fitting", "grammar")
    }
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
    for (length, deep), some in scores.grid(cell=5, n_drawn=300).items():
        assert all(length[0] <= len(s.words) <= length[1] and max(1, scores.depth(s)) == deep for s in some)
        assert len(some) <= 5


def test_the_stricter_rule():
    """Half of the looks must hit, and the interval must clear the baseline with all pairs allowed for."""
    rows = [(0.9, 500, 0.5, True), (0.45, 500, 0.1, True), (0.62, 60, 0.5, True), (0.9, 500, 0.5, False)]
    frame = pd.DataFrame(rows, columns=["score", "n", "baseline", "passes"])
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


MEASURED = [  # measure, its settings, what its table says
    (scores, {"limit": 5}, "| seed 1 | hard | 5 |"),
    (controls, {"limit": 5}, "| seed 1 |"),
    (roles, {"limit": 12}, "previous word (offset −1)"),
    (coreference, {"limit": 15}, "rule: nearest fitting"),
    (cross, {"limit": 4}, "| model | align (AER < 0.1) |"),
    (pruning, {"limit": 3, "draws": 1}, "1 random orders: mean, best"),
    (layers, {"limit": 5, "top": 2}, "layers 0 and 1"),
    (owner, {"limit": 60}, "| encoder: all words → owner |"),
    (draws, {"limit": 8}, "| seed 1 | 4 draws of 2: least, mean, best |"),
    (pairs, {"limit": 3, "layers": 1}, "of 28 pairs are candidates"),
]


@pytest.mark.parametrize(
    ("module", "settings", "words"), MEASURED, ids=[row[0].__name__.split(".")[-1] for row in MEASURED]
)
def test_a_model_is_measured(untrained, monkeypatch, module, settings, words):
    """Each measure on an untrained model, and what its numbers must be whatever the model."""
    copied = lambda _model, _tokenizer, some: [" ".join(words) for words in some]  # noqa: E731
    monkeypatch.setattr(scores.ht, "translate", copied, raising=False)  # an untrained model writes to the last word
    monkeypatch.setattr(pruning, "bleu", lambda *_: (1.0, 0.0, 2.0))
    monkeypatch.setattr(roles, "TWINS", 1)
    found = module.measure(*untrained, **settings)
    assert words in rendered(module, found)
    if module is roles:
        assert found["stricter rule"]["heads"] <= found["first rule"]["heads"]
    if module is coreference:
        assert next(row for row in found["rules"] if row["name"] == "first fitting")["first fitting wrong"] == 0
        assert sum(found["cells"].values()) == found["pronouns"]
    if module is cross:
        assert len(found["errors"]) == 48
    if module is pruning:
        for one in found["kinds"].values():
            for end in (0, -1):  # with all heads and without any
                assert one["curves"]["gradient"][end] == one["curves"]["random 0"][end]
    if module is layers:
        assert [len(falls) for falls in found["off"].values()] == [6, 6, 6]
    if module is owner:
        assert found["n"] >= 5
        assert all(row["low"] <= row["cost"] <= row["high"] for row in found["cuts"])
    if module is draws:
        assert all(-1 <= x <= 1 for x in found["spearman"])
        assert 1 / 8 <= found["largest twentieth"] <= 1


def test_a_piece_is_right_whatever_the_rest_of_the_word_says():
    assert use.piece("s'tikolik'n", ["case"]) == use.piece("tikok", ["case"]) != use.piece("tikot", ["case"])
    assert use.piece("Zanena", ["gender"]) is None


def test_pieces_are_counted_where_the_word_needs_them():
    """Every word that needs an accent has that piece; a pronoun's gender counts, that of its verb does not."""
    some = corpus("test", 30)
    needs = [needed for s in some for needed in (*s.phenomena, ())]
    assert use.counted("previous word", some).tolist() == ["left accent" in needed for needed in needs]
    upos = [s.upos[number - 1] if number else "" for s in some for number in (*s.alignment, 0)]
    chosen = [u for u, counts in zip(upos, use.counted("pronoun → its noun", some).tolist(), strict=True) if counts]
    assert chosen
    assert set(chosen) == {"PRON"}


def test_use(untrained, monkeypatch):
    """Without head 0.0 every left accent is wrong, and nothing else is."""
    off = []

    @contextmanager
    def ablate(_model, heads):
        off[:] = heads
        yield

    def predictions(_model, sentences):
        ids, words = word_ids(), [word for s in sentences for word in (*s.target, "</s>")]
        wrong = {"": "s'", "s'": ""} if ("encoder", 0, 0) in off else {"": "", "s'": "s'"}
        pieces = [w.removeprefix("s'") for w in words]
        other = [wrong["s'" if w.startswith("s'") else ""] + rest for w, rest in zip(words, pieces, strict=True)]
        return torch.tensor([ids.get(a, ids[b]) for a, b in zip(other, words, strict=True)])

    monkeypatch.setattr(use.ht, "ablate", ablate, raising=False)
    monkeypatch.setattr(use, "predictions", predictions)
    monkeypatch.setattr(use, "held_roles", lambda *_: {"0.0": ["offset -1"], "5.5": ["obj down", "topic"]})
    found = use.measure(*untrained, limit=20, sets=3)
    rows = {row["group"]: row for row in found["groups"]}
    previous = rows["previous word"]
    assert (previous["heads"], previous["right"], previous["random"]) == (["0.0"], 1.0, 0.0)
    assert previous["cost"] == previous["worst"][0][1] == 1.0
    assert previous["worst"][0][0] == "0.0"
    assert previous["worst"][1][1] == 0.0
    assert rows["the name"]["heads"] == rows["verb → object"]["heads"] == ["5.5"]
    assert rows["the name"]["cost"] == 0.0
    assert "cost" not in rows["its noun"]
    text = rendered(use, found)
    assert "| seed 1 | its noun | none |" in text
    assert "the cost of *verb → object*, *the name* is not above that of random heads" in text


def test_weights_to_the_owner_are_cut_and_no_others():
    told = replace(TOLD, alignment=tuple(range(1, 15)))  # translated word by word
    assert list(owner.owned_nouns(told)) == [], "a name has no ending"
    (owned,) = owner.owned_nouns(replace(told, upos=("NOUN",) * 14))
    assert [TOLD.words[i] for i in (owned.owner, owned.preposition, owned.noun)] == ["doctor", "of", "Lorana"]
    assert [TOLD.words[i] for i in owned.agreeing] == ["the"]
    of, *_ = owner.to_preposition(owned, [])
    assert of == (9, 8)
    assert {query for query, _ in owner.to_others(owned, [])} == {9}
    assert 8 not in {key for _, key in owner.to_others(owned, [])}
    assert owner.in_encoder(owned, [7]) == [(query, 7) for query in range(15) if query != 7]
    # The translation of word 7 is read at position 8, and position 9 writes that of word 9.
    assert owner.in_decoder(owned, [7]) == [(9, 8)]
    assert owner.in_cross(owned, [7]) == [(9, 7)]


def test_a_word_that_is_cut_everywhere_is_not_seen(untrained):
    """Without cuts the model is as it always is; with all cuts, another owner changes no prediction."""
    model, _ = untrained
    some = [s for s in corpus("test", 200) if sum("owner" in p for p in s.phenomena) == 1][:10]
    assert torch.equal(owner.predictions(model, some, {}), use.predictions(model, some))
    changed = []
    for sentence in some:
        (owned,) = owner.owned_nouns(sentence)
        words = list(sentence.words)
        words[owned.owner] = "field" if words[owned.owner] != "field" else "river"
        changed.append(replace(sentence, words=tuple(words)))
    everywhere = lambda owned, keys: [(query, key) for key in keys for query in range(owned.words + 1)]  # noqa: E731
    cuts = {"encoder": owner.in_encoder, "cross": everywhere}
    assert torch.equal(owner.predictions(model, some, cuts), owner.predictions(model, changed, cuts))
    assert not torch.equal(owner.predictions(model, some, {}), owner.predictions(model, changed, {}))


def test_pairs_find_two_heads_that_stand_in_for_each_other(untrained, monkeypatch):
    """Of three heads, two do the same thing: one of them is enough."""

    def fake(_model, _batches, sites, progress):
        heads = [("encoder", 0, head) for head in range(3)]
        worth = {(0, 1): (0.0, 0.0, 0.5), (0, 2): (0.0, 0.3, 0.3), (1, 2): (0.0, 0.3, 0.3)}
        rows = [(heads[a], heads[b], *values) for (a, b), values in worth.items()]
        return pd.DataFrame(rows, columns=["a", "b", "delta_a", "delta_b", "delta_ab"])

    monkeypatch.setattr(pairs.ht, "interaction", fake, raising=False)
    found = pairs.measure(*untrained, limit=5)
    assert [row[:2] for row in found["measured"]] == [["0.0", "0.1"]]
    assert pairs.confirmed(found["measured"]) == [], "in an untrained model it is not confirmed"
    assert "1 of 1,128 pairs are candidates" in rendered(pairs, found)


def test_gates_are_trained_once_and_kept(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(_gated, "bleu", lambda *_: (50.0, 49.0, 51.0))
    arguments = {"limit": 5, "runs": tmp_path, "steps": 2}
    row = _gated.one_run(*untrained, "encoder", 0.02, **arguments)
    assert (len(row["kept"]), len(row["log_alpha"])) == (48, 48)
    assert row["cost"] == 0, "nothing is closed after two steps"
    monkeypatch.setattr(_gated.ht, "fit_gates", None)
    assert _gated.one_run(*untrained, "encoder", 0.02, **arguments) == row
    with pytest.raises(ValueError, match="another folder"):
        _gated.one_run(*untrained, "encoder", 0.02, **(arguments | {"limit": 6}))


def run_of(kept, bleu, cost=0.0, **changes):
    """One run of gates as the results have it."""
    return {
        "penalty": 0.02,
        "rate": 0.05,
        "seed": 0,
        "steps": _gated.STEPS,
        "kept": kept,
        "bleu": [bleu, bleu - 1, bleu + 1],
        "cost": cost,
        "undecided": 0,
        "roles": {},
        "log_alpha": [-1.0, 2.0],
    } | changes


def test_what_runs_of_gates_say(untrained, monkeypatch):
    """What is concluded from runs; that the tables say so is seen on the card."""
    few = [f"encoder {head}" for head in ("0.0", "1.1", "2.2")]
    one, other, alone = run_of(few, 95.0), run_of(few, 93.9, seed=1), run_of(few, 96.0, penalty=0.1)
    assert sweep.repeated({"runs": [one, other, alone]}) == [[one, other]], "one run alone may be lucky"
    assert sweep.repeated({"runs": [alone]}) == []
    monkeypatch.setattr(rates, "before", lambda *_: {"bleu": [96.0, 95.0, 97.0], "roles": {}})
    monkeypatch.setattr(rates, "one_run", lambda *given, **_: run_of(few, 95.0, cost=given[4] - 0.1, rate=given[4]))
    found = rates.measure(*untrained)
    assert rates.chosen_rate(found) == 0.1
    assert "seed 1 0.1." in rendered(rates, found)
    mixed = [*few, *(f"decoder 5.{i}" for i in range(8)), *(f"cross 4.{i}" for i in range(8))]
    assert kinds.encoder_first(run_of(mixed, 95.0))
    every = [f"{kind} {layer}.{head}" for kind in kinds.KINDS for layer in range(6) for head in range(8)]
    assert kinds.encoder_first(run_of(every[5:], 95.0)) is None


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
        measure.main(["controls"], tmp_path / "model", name, attention, 5, results=tmp_path / "results", readme=readme)
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


def test_the_card_says_what_the_results_say():
    text = card.README.read_text("utf-8")
    assert card.rendered(text) == text
