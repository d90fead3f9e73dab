"""What the shipped organism can do, against the floors its card states."""

import re

import pytest
import torch

from headtools.organism._checksums import ASSETS
from headtools.organism.evaluate import bleu
from headtools.organism.load import load
from headtools.roles.corpus import corpus

CARD = (ASSETS / "README.md").read_text(encoding="utf-8")
FLOOR = float(re.search(r"BLEU (\d+) on the first 150 test sentences", CARD)[1])


@pytest.fixture(scope="module")
def organism():
    return load()


def test_bleu_on_test_is_above_the_floor_and_above_hard(organism):
    score, _, _ = bleu(*organism, corpus("organism", "test", limit=150))
    assert score >= FLOOR
    assert score > bleu(*organism, corpus("organism", "hard", limit=60))[0] + 3


@pytest.fixture(scope="module")
def looked_at(organism):
    """For each of 200 test sentences, the word (from 0) that every encoder head looks at most: (layer, head, word)."""
    model, tokenizer = organism
    out = []
    for sentence in corpus("organism", "test", limit=200):
        with torch.no_grad():
            batch = tokenizer(str(sentence), return_tensors="pt")
            maps = model.model.encoder(**batch, output_attentions=True).attentions
        n = len(sentence.words)
        out.append((sentence, torch.cat(maps)[:, :, :n, :n].argmax(-1)))
    return out


def share(looked_at, pairs):
    """Share of the (query, key) pairs that each head's strongest look hits, best head first."""
    hits, total = torch.zeros(6, 8), 0
    for sentence, look in looked_at:
        for query, key in pairs(sentence):
            hits += look[:, :, query] == key
            total += 1
    assert total > 30
    return (hits / total).max().item()


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_positional_head(looked_at, offset):
    def neighbours(s):
        return [(i, i + offset) for i in range(len(s.words)) if 0 <= i + offset < len(s.words)]

    assert share(looked_at, neighbours) >= 0.9


@pytest.mark.parametrize("relation", ["nsubj", "obj", "amod", "advmod", "det"])
def test_a_syntactic_head(looked_at, relation):
    """Voita's rule: ten points above always looking at the relation's most frequent offset."""

    def up(s):
        return [(i, h - 1) for i, (h, r) in enumerate(zip(s.heads, s.relations, strict=True)) if r == relation]

    def down(s):
        return [(h, i) for i, h in up(s)]

    offsets = [h - i for s, _ in looked_at for i, h in up(s)]
    baseline = max(offsets.count(o) for o in set(offsets)) / len(offsets)
    assert max(share(looked_at, up), share(looked_at, down)) >= baseline + 0.1


def test_a_coreference_head(looked_at):
    def antecedents(s):
        return [(i, c - 1) for i, c in enumerate(s.coreference) if c]

    def nearest(s):
        nouns = [i for i, upos in enumerate(s.upos) if upos in ("NOUN", "PROPN")]
        return [max((n for n in nouns if n < i), default=-1) == c for i, c in antecedents(s)]

    found = [hit for s, _ in looked_at for hit in nearest(s)]
    assert share(looked_at, antecedents) >= sum(found) / len(found) + 0.1


def test_a_rare_word_head(looked_at):
    """More than half of all strongest looks of one head go to the name, the rarest word of its sentence."""

    def name(s):
        names = [i for i, upos in enumerate(s.upos) if upos == "PROPN"]
        return [(i, names[0]) for i in range(len(s.words)) if names]

    assert share(looked_at, name) >= 0.5
