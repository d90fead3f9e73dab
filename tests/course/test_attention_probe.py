"""The attention probe: against brute force on hand-made maps, and never better than what the maps hold."""

import numpy as np
import pytest
import torch

import headtools as ht
from headtools.course import attention_probe as ap
from headtools.course.attention_probe import METHODS, attention_probe
from headtools.heads.verify import _keep
from headtools.roles.sentence import Sentence

MODEL, TOKENIZER = ht.load()
TRAIN, TEST = (ht.corpus("organism", split, limit=40) for split in ("validation", "test"))
TREE = Sentence(tuple("abcd."), (2, 0, 4, 2, 2), ("det", "root", "det", "obj", "punct"), tuple("DVDNP"), (0,) * 5)
PAIR = Sentence(tuple("ab"), (2, 0), ("det", "root"), tuple("DV"), (0, 0))


def test_pairs_by_hand():
    pairs = ap._Pairs([TREE, PAIR], "train")
    assert pairs.word.tolist() == [0, 2, 3, 0]  # roots and punctuation are not predicted
    assert pairs.head.tolist() == [1, 3, 1, 1]
    candidates = [pairs.candidate[(pairs.row == i).numpy()].tolist() for i in range(4)]
    assert candidates == [[1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [1]]
    assert [candidates[i][p] for i, p in enumerate(pairs.head_candidate.tolist())] == pairs.head.tolist()
    assert pairs.head_at(np.ones(4, int)).tolist() == [True, True, False, True]
    assert ap._offsets_by_upos(pairs, pairs).tolist() == [1, 1, -2, 1]


def test_loss_and_gradient_against_autograd():
    pairs = ap._Pairs([TREE, PAIR], "train")
    by_pair = torch.randn(len(pairs.row), generator=torch.Generator().manual_seed(0), requires_grad=True)
    words = torch.tensor([1.0, 0.0, 1.0, 1.0])
    total = 0.0
    for i in (0, 2, 3):
        own = by_pair[pairs.row == i]
        total = total - own.log_softmax(0)[pairs.head_candidate[i]] / 3
    total.backward()
    loss, gradient = pairs.loss(by_pair.detach(), words)
    torch.testing.assert_close(loss, total.detach())
    torch.testing.assert_close(gradient, by_pair.grad)


def test_features_are_attention_down_and_up():
    pairs = ap._Pairs(TEST[:5], "test")
    heads, x = ap._attention_features(MODEL, TOKENIZER, TEST[:5], pairs)
    assert len(heads) == 48 and x.shape == (len(pairs.row), 96)  # noqa: PT018
    k = heads.index(("encoder", 5, 1))
    p = int((pairs.row == 30).nonzero()[2])
    sentence, j, i = int(pairs.sentence_index[30]), int(pairs.word[30]), int(pairs.candidate[p])
    with torch.no_grad(), ht.record(MODEL) as seen:
        MODEL.get_encoder()(**TOKENIZER([str(TEST[sentence])], return_tensors="pt"))
    maps = seen["encoder", 5].maps[0, 1]
    torch.testing.assert_close(x[p, [k, 48 + k]], torch.stack([maps[i, j], maps[j, i]]), atol=1e-5, rtol=1e-4)


def test_the_solution_is_the_least_of_the_penalised_loss():
    pairs = ap._Pairs(TRAIN[:10], "train")
    x = torch.randn(len(pairs.row), 4, generator=torch.Generator().manual_seed(0))
    weights = pairs.fit(x, 0.1)
    words = torch.ones(len(pairs.word))

    def objective(w):
        return float(pairs.loss(x @ w, words)[0] + 0.05 * w.square().sum())

    least = objective(weights)
    for step in torch.eye(4):
        assert objective(weights + 0.02 * step) > least < objective(weights - 0.02 * step)


def test_maps_that_hold_the_tree_are_found_in_either_direction(monkeypatch):
    def features(model, tokenizer, sentences, pairs):
        gold = torch.from_numpy(pairs.candidate == pairs.head[pairs.row]).float()
        noise = torch.rand(len(gold), 3, generator=torch.Generator().manual_seed(0))
        return [("encoder", 0, 0), ("encoder", 0, 1)], torch.cat([noise, gold[:, None]], 1)

    monkeypatch.setattr(ap, "_attention_features", features)
    found = attention_probe(MODEL, TOKENIZER, TRAIN, TEST)
    assert found.scores.set_index("method").uas["attention"] == 1
    top = found.weights.loc[found.weights.effective_weight.idxmax()]
    assert (top["head"], top.up > 1, abs(top.down) < 0.5 * top.up) == (1, True, True)


def test_scores_stand_beside_the_rules():
    found = attention_probe(MODEL, TOKENIZER, TRAIN, TEST)
    scores = found.scores.set_index("method")
    assert list(scores.index) == list(METHODS)
    assert (scores.low <= scores.uas).all()
    assert (scores.uas <= scores.high).all()
    asked = [(s, j) for s in TEST for j in range(len(s.words)) if s.heads[j] and s.relations[j] != "punct"]
    assert scores.n.unique().tolist() == [len(asked)]
    assert scores.uas["right-branching"] == pytest.approx(np.mean([s.heads[j] - 1 == j + 1 for s, j in asked]))
    assert scores.uas["attention"] > scores.uas["offset by upos"] > scores.uas["best offset"]
    assert scores.uas["attention"] > scores.uas["untrained"] + 0.2
    assert len(found.weights) == 48


@pytest.mark.parametrize("check", ["kind", "padding"])
def test_what_does_not_hold_is_refused(check):
    model, tokenizer = ht.load()
    every_site = ht.sites(model)
    _keep(every_site, {(site.label, check): "it does not hold" for site in every_site})
    with pytest.raises(ValueError, match=r"verify\(model\) found: it does not hold"):
        attention_probe(model, tokenizer, TEST[:10], TRAIN[:10])


def test_a_word_of_train_in_test_too_few_and_too_much_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="in train and in test"):
        attention_probe(MODEL, TOKENIZER, TRAIN, TRAIN[:2])
    bare = Sentence(("it",), (0,), ("root",), ("PRON",), (0,))
    with pytest.raises(ValueError, match="train has 1 words"):
        attention_probe(MODEL, TOKENIZER, [PAIR, bare], TEST)
    monkeypatch.setattr(ap, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="give fewer sentences"):
        attention_probe(MODEL, TOKENIZER, TRAIN, TEST)


def test_precision_is_its_own_under_autocast():
    def solve():
        pairs = ap._Pairs.__new__(ap._Pairs)
        pairs.word, pairs.loss = [0, 1, 2], lambda logits, words: ((logits**2 - logits).sum(), 2 * logits - 1)
        return pairs.fit(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), 0.1)

    plain = solve()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(solve(), plain)
