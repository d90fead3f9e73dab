"""The model card's numbers: those of the command that measures them, and still so on this machine."""

import json
import math
import re
from contextlib import contextmanager

import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.organism import roles_found
from headtools.organism._checksums import ASSETS
from headtools.organism.shipped import shipped
from headtools.roles.sentence import Sentence
from recipes import _role_use, gates, growth, head_importance, scorecard

CARD = (ASSETS / "README.md").read_text(encoding="utf-8")
SCORES = json.loads((ASSETS / "scores.json").read_text(encoding="utf-8"))
ROLES = {row["role"]: row for row in SCORES["roles"]}


# --- the card says what the command wrote -----------------------------------------------------------------------------


def test_tables_of_the_card_are_what_the_recipes_wrote():
    """Scores, roles, their use; curve and gates; snapshots, seeds and sizes; what heads are worth."""
    files = ("pruning", "growth", "worth")
    pruning, grown, worth = (json.loads((ASSETS / f"{name}.json").read_text("utf-8")) for name in files)
    texts = scorecard.markdown(SCORES), gates.markdown(pruning), growth.markdown(grown), head_importance.markdown(worth)
    tables = [part for text in texts for part in text.split("\n\n") if "\n|---|" in part]
    assert len(tables) >= 9
    for table in tables:
        if not table.startswith("| other relations"):
            assert "\n".join(table.splitlines()[1:]) in CARD, table.splitlines()[0]


def test_counts_in_the_card():
    text, used = " ".join(CARD.split()), SCORES["usage"]
    assert f"Token accuracy of the whole model is {used['accuracy']:.3f}" in text
    assert f"in {used['sentences']} test sentences" in text
    assert all(row["used"] for row in used["groups"][:-1]) == ("Every role is used by this measure" in text)
    heads, strong = SCORES["heads"], SCORES["strong"]
    assert f"{len(heads)} of the 48 encoder heads have a role and {48 - len(heads)} have none" in text
    last = [head for head in strong if head >= "4"]
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    assert f"{words[len(strong)].capitalize()} of the {len(heads)} are strong" in text
    assert f"{words[len(last)]} of those sit in the last two layers" in text
    resting = [head for head, weight in SCORES["eos_weight"].items() if weight >= scorecard.MOST]
    assert f"{words[len(resting)].capitalize()} of the eight heads in layer 0 rest on the EOS token" in text
    assert all(head.startswith("0.") for head in resting)
    middle = [x for head, x in SCORES["normalised_entropy"].items() if head[0] in "123"]
    even = sum(x >= scorecard.MOST for x in middle)
    assert f"{even} of the {len(middle)} heads of layers 1 to 3" in text


def test_limits_in_the_card():
    """Relations that the card calls missed or weak are so."""
    best = {r: max(ROLES[f"{r} up"]["score"], ROLES[f"{r} down"]["score"]) for r in ("conj", "advcl", "obl", "nmod")}
    match = re.search(r"The best heads for conj and advcl .*?only\s+(\d+) % and (\d+) %", CARD, re.S)
    assert [int(text) for text in match.groups()] == [round(100 * best["conj"]), round(100 * best["advcl"])]
    assert best["nmod"] < ROLES["nmod up"]["baseline"]


def test_what_decides_with_few_heads_in_the_card():
    """BLEU of the sweep's runs with 9 to 15 encoder heads, with the head for pronouns among them and without it."""
    bleus = {True: [], False: []}
    for run in shipped("sweep").query("over == 'encoder'").to_dict("records"):
        kept = [head for head in run["kept"] if head.startswith("encoder")]
        if 9 <= len(kept) <= 15:
            bleus["encoder 0.3" in kept].append(run["bleu"][0])
    ends = [f"{round(f(bleus[with_it]), 1)}" for with_it in (True, False) for f in (min, max)]
    number = r"([\d.]+) to ([\d.]+)"
    match = re.search(rf"have BLEU {number} where\s+head 0\.3.*?, and {number} where it", CARD, re.S)
    assert list(match.groups()) == ends


def test_what_heads_are_worth_in_the_card():
    one_off, pairs = shipped("one head off"), shipped("pairs")
    costs = one_off.sort_values("bleu_change")
    five = [
        f"{head} {'costs ' if i == 0 else ''}{-change:.1f}"
        for i, (head, change) in enumerate(costs[["head", "bleu_change"]].values[:5])
    ]
    text, uncertain = " ".join(CARD.split()), one_off.set_index("head").loc["0.5"]
    assert ", ".join(five) in text
    assert f"the median of the 48 is −{-one_off.bleu_change.median():.2f}." in text
    assert f"{(one_off.p_adjusted < 0.01).sum()} changes have p < .01" in text
    assert f"0.5, which costs {-uncertain.bleu_change:.1f}, has p = {f'{uncertain.p:.2f}'[1:]} before" in text
    top = pairs.loc[pairs.interaction.idxmax()]
    assert f"{top.a} and {top.b} ({top.interaction:.2f} nats)" in text


# --- and it is still so -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def organism():
    return ht.load()


@pytest.fixture(scope="module")
def found(organism):
    return roles_found.roles(*organism, *(ht.corpus("organism", split, limit=250) for split in ("validation", "test")))


def test_roles_measured_again(found):
    best = roles_found.best(found)
    assert len(found) == 48 * len(best)
    assert set(best.index) == set(ROLES)
    assert found[["validation", "score", "low", "high"]].stack().between(0, 1).all()
    for role in scorecard.NAMES:
        in_card, now = ROLES[role], found.set_index(["role", "head"]).loc[(role, ROLES[role]["head"])]
        deviation = math.sqrt(in_card["score"] * (1 - in_card["score"]) / now.n)
        assert abs(now.score - in_card["score"]) <= 3.5 * deviation + 0.01, role
        assert now.low - 1e-9 <= now.score <= now.high + 1e-9
        if now.n >= 100:
            assert best.loc[role, "head"] == in_card["head"], role
    heads = SCORES["heads"]
    strong = roles_found.strong(found)
    assert set(strong["head"]) <= set(heads)
    assert len(set(strong["head"]) ^ set(SCORES["strong"])) <= 2


@pytest.mark.full
def test_switching_off_measured_again(organism, found, monkeypatch):
    monkeypatch.setattr(_role_use, "_control_sets", lambda heads, all_heads, times, alone: [["0.0"], ["1.1"]])
    accuracy, frame = _role_use.role_use(organism[0], found, ht.corpus("organism", "test", limit=60))
    assert accuracy == pytest.approx(SCORES["usage"]["accuracy"], abs=0.01)
    in_card = {row["group"]: row for row in SCORES["usage"]["groups"]}
    now = frame.set_index("group")
    for group in ("previous word", "next word", "its noun", "the name"):
        assert now.loc[group, "heads"] == in_card[group]["heads"]
        assert now.loc[group, "accuracy_drop"] == pytest.approx(in_card[group]["accuracy_drop"], abs=0.1)
        assert now.loc[group, "used"]
    assert now.accuracy_drop["all strong"] > now.accuracy_drop["all others"] + 0.3


def test_usage_by_hand(monkeypatch):
    """Two sentences, five words: what falls, where, and beside what."""
    right = {
        (): [1, 1, 1, 1, 1, 1, 1],
        ("0.0",): [0, 1, 1, 1, 1, 1, 1],
        ("0.1",): [1, 0, 0, 1, 1, 1, 1],
        ("0.0", "0.1"): [0] * 7,
    }
    off = []
    monkeypatch.setattr(_role_use, "batches", lambda sentences: [{}])
    monkeypatch.setattr(_role_use, "_correct", lambda model, batch: torch.tensor(right[tuple(off)]).bool())

    @contextmanager
    def ablate(model, heads):
        off[:] = [f"{layer}.{head}" for _, layer, head in heads]
        yield

    monkeypatch.setattr(_role_use.ht, "ablate", ablate)
    needs = (("left accent",), ("right accent",))
    sentences = [
        Sentence(("a", "b"), (0, 1), ("root", "obj"), ("X", "X"), (0, 0), ("A", "B"), (1, 2), None, needs),
        Sentence(
            ("a", "b", "c"),
            (0, 1, 1),
            ("root", "obj", "obj"),
            ("X",) * 3,
            (0,) * 3,
            ("A", "B", "C"),
            (1, 2, 3),
            None,
            (*needs, ()),
        ),
    ]
    found = pd.DataFrame({"role": ["offset -1", "offset +1"], "head": ["0.0", "0.1"], "passes": True, "validation": 1})
    accuracy, frame = _role_use.role_use(None, found, sentences)
    assert accuracy == 1
    rows = frame.set_index("group")
    assert rows.loc["previous word", ["n", "accuracy_drop", "control_mean"]].tolist() == [2, 0.5, 0.0]
    assert rows.loc["next word", ["n", "accuracy_drop", "control_mean"]].tolist() == [2, 0.5, 0.0]
    assert "the name" not in rows.index, "nobody has it"
