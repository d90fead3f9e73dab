"""The second organism as it ships: it loads, translates, and its card says what was measured."""

import pytest
import torch

import headtools as ht
from headtools.organism.second.results import second_results
from recipes.second_organism import card
from recipes.second_organism.batches import batches


def test_it_loads_and_gets_words_right_as_its_card_says():
    model, tokenizer = ht.load("organism2")
    sentences = ht.corpus("organism2", "test", limit=40)
    assert not model.training
    assert model.dtype == torch.float32
    right = total = 0
    for batch in batches(sentences):
        with torch.no_grad():
            hit = model(**batch).logits.argmax(-1) == batch["labels"]
        right, total = right + int(hit.sum()), total + int((batch["labels"] >= 0).sum())
    accuracy = second_results("scores")["splits"]["test"]["accuracy"]
    assert right / total == pytest.approx(accuracy if isinstance(accuracy, float) else accuracy[0], abs=0.02)
    (translated,) = ht.translate(model, tokenizer, [sentences[0].words])
    assert len(str(translated).split()) > 3


def test_its_card_is_written_from_the_results():
    assert card.rendered(card.README.read_text("utf-8")) == card.README.read_text("utf-8")


def test_what_was_not_measured_is_refused_in_words():
    with pytest.raises(ValueError, match=r"got table 'nothing'; expected one of .*'cross'.*second_results\('cross'\)"):
        second_results("nothing")
    with pytest.raises(ValueError, match=r"pairs was not measured on 'seed 9', but on 'seed 1'"):
        second_results("pairs", "seed 9")


def test_each_organism_has_its_own_sentences():
    first, second = (ht.corpus(name, "test", limit=30) for name in ("organism", "organism2"))
    assert {str(s) for s in first}.isdisjoint({str(s) for s in second})
    assert [s.words for s in ht.corpus("organism2", "test", limit=3)] == [s.words for s in second[:3]]
