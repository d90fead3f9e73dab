"""How far numbers of a model in bfloat16 are from those in float32: what notebooks/scaling.md promises."""

import copy

import pytest
import torch

import headtools as ht

pytestmark = pytest.mark.full  # the organism twice, in two types

# measure: (largest difference as a share of the largest score, rank correlation): see the table on that page
PROMISED = {"gradient": (0.1, 0.99), "ablation": (0.03, 0.85), "relevance": (0.01, 0.999), "confidence": (0.002, 0.999)}
MORE = {"ablation": {"progress": False, "sites": [("encoder", 0), ("encoder", 5)]}, "relevance": {"rules": "cp"}}


@pytest.fixture(scope="module")
def pair():
    model, tokenizer = ht.load()
    sentences = ht.corpus("organism", limit=16)
    return model, copy.deepcopy(model).to(torch.bfloat16), tokenizer, sentences, ht.label(model, tokenizer, sentences)


@pytest.mark.parametrize("measure", PROMISED)
def test_scores_are_near(pair, measure):
    model, half, *_, batches = pair
    given = {"sites": ["encoder"], **MORE.get(measure, {})}
    wanted, found = (getattr(ht, measure)(m, batches, **given) for m in (model, half))
    share, rank = PROMISED[measure]
    assert 0 < (found.flat() - wanted.flat()).abs().max() <= share * wanted.flat().abs().max()
    assert wanted.spearman(found) >= rank
    assert next(half.parameters()).dtype == torch.bfloat16


def test_roles_are_the_same(pair):
    model, half, tokenizer, sentences, _ = pair
    wanted, found = (ht.taxonomy(m, tokenizer, sentences, kinds="encoder", times=30) for m in (model, half))
    often = wanted.n >= 20  # of a few looks, one that goes elsewhere is much
    assert 0 < (wanted.score - found.score)[often].abs().max() <= 0.1
    assert (wanted.passes != found.passes).mean() < 0.01
