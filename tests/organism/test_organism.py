"""What the shipped organisms can do, against the floors that their cards state."""

import re

import pytest
import torch

import headtools as ht
from headtools.organism._checksums import ASSETS
from headtools.organism.evaluate import bleu
from headtools.organism.second.results import second_results
from headtools.organism.second.vocabulary import vocabulary

CARD = (ASSETS / "README.md").read_text(encoding="utf-8")
FLOOR = float(re.search(r"BLEU (\d+) on the first 150 test sentences", CARD)[1])


@pytest.fixture(scope="module")
def organism():
    return ht.load()


def test_bleu_on_test_is_above_the_floor_and_above_hard(organism):
    score, _, _ = bleu(*organism, ht.corpus("organism", "test", limit=150))
    assert score >= FLOOR
    assert score > bleu(*organism, ht.corpus("organism", "hard", limit=60))[0] + 3


def test_the_second_organism_gets_words_right_as_its_card_says():
    model, tokenizer = ht.load("organism2")
    assert model.dtype == torch.float32
    sentences, words = ht.corpus("organism2", "test", limit=40), list(vocabulary())
    assert {str(s) for s in sentences}.isdisjoint({str(s) for s in ht.corpus("organism", "test", limit=40)})
    right = total = 0
    for s in sentences:
        with torch.no_grad():
            target = [words.index(word) for word in (*s.target, "</s>")]
            given = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
            logits = model(**tokenizer(str(s), return_tensors="pt"), decoder_input_ids=given).logits[0]
        right, total = right + (logits.argmax(-1) == torch.tensor(target)).sum().item(), total + len(target)
    accuracy = second_results("scores")["splits"]["test"]["accuracy"]
    assert right / total == pytest.approx(accuracy if isinstance(accuracy, float) else accuracy[0], abs=0.02)


# --- roles, without the package's own measures ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def looked_at(organism):
    """For each of 200 test sentences, the word (from 0) that every encoder head looks at most: (layer, head, word)."""
    model, tokenizer = organism
    out = []
    for sentence in ht.corpus("organism", "test", limit=200):
        with torch.no_grad():
            batch = tokenizer(str(sentence), return_tensors="pt")
            maps = model.model.encoder(**batch, output_attentions=True).attentions
        n = len(sentence.words)
        out.append((sentence, torch.cat(maps)[:, :, :n, :n].argmax(-1)))
    return out


def share(looked_at, pairs):
    """Share of the (query, key) pairs that each head's strongest look hits, best head first."""
    looks = [look[:, :, query] == key for sentence, look in looked_at for query, key in pairs(sentence)]
    assert len(looks) > 30
    return torch.stack(looks).float().mean(0).max().item()


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_positional_head(looked_at, offset):
    neighbours = lambda s: [(i, i + offset) for i in range(len(s.words)) if 0 <= i + offset < len(s.words)]  # noqa: E731
    assert share(looked_at, neighbours) >= 0.9


@pytest.mark.parametrize("relation", ["nsubj", "obj", "amod", "advmod", "det"])
def test_a_syntactic_head(looked_at, relation):
    """Voita's rule: ten points above always looking at the relation's most frequent offset."""

    def up(s):
        return [(i, h - 1) for i, (h, r) in enumerate(zip(s.heads, s.relations, strict=True)) if r == relation]

    offsets = [h - i for s, _ in looked_at for i, h in up(s)]
    baseline = max(offsets.count(o) for o in set(offsets)) / len(offsets)
    assert max(share(looked_at, up), share(looked_at, lambda s: [(h, i) for i, h in up(s)])) >= baseline + 0.1


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
    names = lambda s: [(i, s.upos.index("PROPN")) for i in range(len(s.words)) if "PROPN" in s.upos]  # noqa: E731
    assert share(looked_at, names) >= 0.5
