"""Which words the encoder's heads look at most, word by word, and the pairs of words that make a role."""

import math

import pytest
import torch

import headtools as ht
from headtools.organism import roles_found
from headtools.roles.sentence import Sentence


@pytest.fixture(scope="module")
def organism():
    return ht.load()


def test_looks_are_the_greatest_weights_word_by_word(organism):
    model, tokenizer = organism
    sentences = ht.corpus("organism", "test", limit=7)  # of several lengths, in batches of 3
    seen = roles_found.observe(model, tokenizer, sentences, roles_found.argmax_keys, batch_size=3)
    end = roles_found.observe(model, tokenizer, sentences, roles_found.eos_weight, batch_size=3)
    start = 0
    for sentence in sentences:
        n = len(sentence.words)
        with torch.no_grad():
            maps = model.get_encoder()(**tokenizer(str(sentence), return_tensors="pt"), output_attentions=True)
        alone = torch.cat(maps.attentions)
        assert (seen[:, :, start : start + n] == alone[:, :, :n, :n].argmax(-1)).float().mean() > 0.999
        torch.testing.assert_close(end[:, :, start : start + n], alone[:, :, :n, n], atol=1e-5, rtol=0)
        start += n
    assert start == seen.shape[2]


def test_evenness_of_one_look_is_none():
    one = torch.zeros(1, 1, 3, 3)
    one[..., 1] = 1.0
    assert roles_found.normalised_entropy(one, torch.tensor([[True, True, False]])).tolist() == [[[0.0, 0.0, 0.0]]]


def test_no_sentences(organism):
    with pytest.raises(ValueError, match="got no sentences"):
        roles_found.observe(*organism, [], roles_found.argmax_keys)


def test_pairs_leave_out_marks_and_roots():
    sentence = Sentence(
        ("it", "slept", "."), (2, 0, 2), ("nsubj", "root", "punct"), ("PRON", "VERB", "PUNCT"), (0,) * 3
    )
    some = roles_found.pairs(sentence)
    assert {role for role in some if " up" in role or " down" in role} == {"nsubj up", "nsubj down"}
    assert some["offset +2"] == [(0, 2)]
    assert some["name"] == some["topic"] == some["coreference"] == []


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_wilson_solves_its_equation(fraction):
    """At the ends of the interval the share lies 1.96 standard errors away (Wilson 1927)."""
    for end in roles_found.wilson(fraction, 40):
        assert 0 <= round(end, 12) <= 1
        assert abs(end - fraction) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 40), abs=1e-6)
