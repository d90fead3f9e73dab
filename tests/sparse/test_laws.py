"""Laws of sparse/ on models of any architecture, size, precision and side of padding."""

import copy

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import headtools as ht
from headtools.geometry.circuits import ov
from headtools.importance.loss import label_loss

from ..heads.reference import untouched
from ..laws import close, law, logits, logits_of, real, some
from ..random_models import drawn
from .ridges import ridge

EXACT = ("float32", "float64")
ALONE = ("bert", "distilbert", "gpt2", "opt", "t5", "marian", "vit")  # each head has values of its own


def every_head(model):
    return [(*site.key, head) for site in ht.sites(model) for head in range(site.heads)]


def losses(model, one):
    inputs = {name: value for name, value in one.batch.items() if name != "labels"}
    return label_loss(model, model(**inputs), one.batch)


@law(15)
@given(drawn(), st.data())
def test_a_curve_is_switching_off_the_first_of_an_order(one, data):
    order = data.draw(st.permutations(every_head(one.model)), label="order")
    order = order[: data.draw(st.integers(1, len(order)), label="heads in it")]
    keep = data.draw(st.lists(st.integers(0, len(order)), min_size=1, max_size=3), label="keep")
    with untouched(one.model):
        frame = ht.curve(one.model, order, lambda model: losses(model, one).mean().item(), keep=keep)
    assert frame.kept.tolist() == keep
    for kept, metric in zip(keep, frame.metric, strict=True):
        with torch.no_grad(), ht.ablate(one.model, order[: len(order) - kept]):
            expected = losses(one.model, one).mean()
        assert close(one, torch.tensor(metric), expected)


@law(25)
@given(drawn(), st.data())
def test_orders_hold_every_head_once(one, data):
    found, seed = ht.sites(one.model), data.draw(st.integers(0, 9), label="seed")
    scores = ht.HeadScores({site.key: torch.rand(site.heads) for site in found})
    every = every_head(one.model)
    assert sorted(ht.random_order(found, seed)) == sorted(every)
    assert ht.random_order(found, seed) == ht.random_order(every, seed) == ht.random_order(scores, seed)
    seen = []

    def score(model):
        """The scores of before; what is off by now can be told from the model."""
        seen.append(logits(one))
        return scores

    step = data.draw(st.integers(1, len(every)), label="step")
    with untouched(one.model):
        order = ht.greedy_order(one.model, score, step=step)
    assert order == sorted(every, key=lambda head: (scores[head], every.index(head)))
    assert len(seen) == -(-len(every) // step)
    for turn, values in enumerate(seen):
        with ht.ablate(one.model, order[: turn * step]):
            assert torch.equal(logits(one), values)


@law(40)
@given(drawn(ALONE, EXACT), st.data())
def test_a_head_that_writes_nowhere_is_a_head_that_is_off(one, data):
    head = data.draw(st.sampled_from(every_head(one.model)), label="head")
    site = ht.sites(one.model)[head[:2]]
    wide = ht.contributions(site, torch.zeros(1, 1, site.heads, site.value_dim, dtype=site.out.weight.dtype)).shape[-1]
    with ht.ablate(one.model, [head]):
        off = logits(one)
    with untouched(one.model), ht.edit(one.model, head, remove=torch.eye(wide)):
        assert close(one, logits(one), off, 10 * one.close)


@law(40)
@given(drawn(ALONE, EXACT), st.data())
def test_a_head_writes_nothing_along_what_was_taken_from_it(one, data):
    head = data.draw(st.sampled_from(every_head(one.model)), label="head")
    site = ht.sites(one.model)[head[:2]]
    draw = torch.Generator().manual_seed(one.seed)
    with ht.record(one.model, want="z") as seen:
        logits(one)
    wide = ht.contributions(site, seen[site].z).shape[-1]
    directions = torch.randn(data.draw(st.integers(1, 3), label="directions"), wide, generator=draw)
    directions = directions.to(site.out.weight.dtype)
    before = ht.contributions(site, seen[site].z)
    with untouched(one.model), ht.edit(one.model, head, remove=directions):
        after = ht.contributions(site, seen[site].z)
    others = [other for other in range(site.heads) if other != head[2]]
    assert torch.equal(after[..., others, :], before[..., others, :])
    along = after[..., head[2], :] @ torch.nn.functional.normalize(directions, dim=-1).T
    assert close(one, along, torch.zeros_like(along), 20 * one.close * max(1.0, before.abs().max().item()))


def strengths(site, head):
    """How strongly a head moves each of its directions, from the whole d x d matrix."""
    factors = ov(site)[head]
    return torch.linalg.svdvals((factors.left @ factors.right).double())


@law(30)
@given(drawn(ALONE, EXACT), st.data())
def test_the_strongest_that_a_head_does_goes_first(one, data):
    head = data.draw(st.sampled_from(every_head(one.model)), label="head")
    site = ht.sites(one.model)[head[:2]]
    top = data.draw(st.integers(1, site.value_dim), label="directions")
    before = strengths(site, head)
    strongest = ov(site)[head].svd()[2][:, :top].T
    with ht.edit(one.model, head, remove=strongest):
        after = strengths(site, head)
    left = before.roll(-top).clone()
    left[max(0, len(before) - top) :] = 0
    assert close(one, after, left, 20 * one.close * max(1.0, before.max().item()))


@law(25)
@given(drawn(ALONE, EXACT), st.data())
def test_a_fit_misses_no_more_than_no_fit(one, data):
    heads = some(data, one.model)
    heads = {key: off[: ht.sites(one.model)[key].heads - 1] for key, off in heads.items()}
    heads = {key: off for key, off in heads.items() if off}
    assume(heads)
    inputs = {name: value for name, value in one.batch.items() if name != "labels"}
    plain, cut = logits(one), copy.deepcopy(one.model)
    with ridge(0.0):
        frame = ht.refit(cut, heads, [inputs])
    assert (frame.relative_error <= frame.dropped + 1e-6).all()
    assert sorted(ht.pruned(cut)) == sorted((*key, head) for key, off in heads.items() for head in off)
    assert logits_of(cut, one).isfinite().all()
    assert torch.equal(logits(one), plain)  # the model that was copied
    groups = [((*key, 0), (*key, 1)) for key in heads]
    merged = copy.deepcopy(one.model)
    with ridge(0.0):
        frame = ht.merge(merged, groups, [inputs])
    assert (frame.relative_error <= frame.dropped + 1e-6).all()
    assert all(kept != gone for kept, gone in zip(frame.kept, frame.removed, strict=True))
    assert len(ht.pruned(merged)) == len(groups)
    assert logits_of(merged, one).isfinite().all()


@law(12)
@given(drawn(dtypes=EXACT), st.data())
def test_training_leaves_the_model_that_it_was_given(one, data):
    learns = data.draw(st.sampled_from(["all", None]), label="weights")
    price = data.draw(st.sampled_from([0.0, 0.1, 10.0]), label="penalty")
    with untouched(one.model):
        fit = ht.fit_gates(one.model, [one.batch], price, steps=2, weights=learns, progress=False)
        gates = fit.gates.split(fit.gates.test_gates())
        assert {key: value.shape for key, value in gates.items()} == {
            site.key: (site.heads,) for site in ht.sites(one.model)
        }
        assert all(value.min() >= 0 and value.max() <= 1 for value in gates.values())
        trained = ht.recover(one.model, [one.batch], steps=1, progress=False)
    assert not torch.equal(logits_of(trained, one), logits(one))


@law(12)
@given(drawn(dtypes=EXACT), st.data())
def test_a_pruned_model_is_one_more_model(one, data):
    """What holds of models holds of what pruning leaves: looking, gates, curves, cutting again."""
    heads = some(data, one.model)
    left = [head for head in every_head(one.model) if head[2] not in heads.get(head[:2], [])]
    assume(left)
    with ht.ablate(one.model, heads):
        closed = logits(one)
    ht.prune(one.model, heads)
    alive = [site for site in ht.sites(one.model) if not site.empty]
    assert sorted((*site.key, number) for site in alive for number in site.original) == sorted(left)
    with untouched(one.model):
        with ht.record(one.model, want="z") as seen:
            assert close(one, real(one, logits(one)), real(one, closed))
        assert all(seen[site].z.shape[2] == site.heads for site in alive)
        order = ht.random_order([(*site.key, head) for site in alive for head in range(site.heads)], 0)
        frame = ht.curve(one.model, order, lambda model: losses(model, one).mean().item(), keep=[len(order), 0])
    assert frame.metric[0] == pytest.approx(losses(one.model, one).mean().item(), rel=1e-4, abs=1e-5)
    ht.prune(one.model, order)
    assert all(site.empty for site in ht.sites(one.model))
    assert losses(one.model, one).mean().item() == pytest.approx(frame.metric[1], rel=1e-4, abs=1e-5)
