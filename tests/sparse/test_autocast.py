"""Inside one autocast region, which keeps weights in half precision, all is as if each part had a region of its own."""

import copy

import pytest
import torch

import headtools as ht
from headtools import geometry
from headtools.sparse import _trainer
from headtools.sparse.fit_gates import fit_gates, recover

from ..heads.zoo import error, fresh, run

RUN = {"steps": 4, "progress": False}
RATE = 1e-2


def half():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.fixture
def bert():
    model, batch = fresh("bert")
    return model, batch | {"labels": batch["input_ids"]}


def by_itself(model):
    """A copy of a model each of whose passes has a region of its own: nothing is kept from one to the next."""
    model = copy.deepcopy(model)
    plain = type(model)

    class Half(plain):
        def forward(self, *args, **kwargs):
            with half():
                return plain.forward(self, *args, **kwargs)

    model.__class__ = Half
    return model


def forward(model, batch):
    """Logits with gradients on: autocast keeps the weights of such runs."""
    return model(**batch).logits.detach().float()


def scores(model, batch):
    """The same in a region of its own."""
    with half():
        return forward(model, batch)


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_fit_gates(bert):
    model, batch = bert
    with half():
        inside = fit_gates(model, [batch], 0.01, weight_rate=RATE, **RUN)
    outside = fit_gates(by_itself(model), [batch], 0.01, weight_rate=RATE, **RUN)
    assert same_weights(inside.model, outside.model)
    assert not same_weights(inside.model, model)
    assert inside.history.equals(outside.history)
    assert inside.losses.equals(outside.losses)


def test_recover_and_a_run_that_goes_on(bert, tmp_path, monkeypatch):
    model, batch = bert
    monkeypatch.setattr(_trainer, "SAVE_EVERY", 2)
    options = RUN | {"rate": RATE, "checkpoint": tmp_path}
    whole = recover(by_itself(model), [batch], rate=RATE, **RUN)

    def stops(step):
        if step == 3:
            raise KeyboardInterrupt
        return batch

    with pytest.raises(KeyboardInterrupt), half():
        recover(model, stops, **options)
    with half():
        forward(model, batch)
        assert same_weights(recover(model, [batch], **options), whole)


def test_an_edit_shows_and_goes(bert):
    model, batch = bert
    head, other = ("encoder", 1, 1), ("encoder", 1, 2)
    v = torch.randn(32, generator=torch.Generator().manual_seed(0))
    plain = scores(model, batch)
    with ht.edit(model, head, remove=v):
        one = scores(model, batch)
        with ht.edit(model, other, remove=v):
            both = scores(model, batch)
    assert min(error(plain, one), error(one, both)) > 0.01
    with half():
        assert torch.equal(forward(model, batch), plain)
        with ht.edit(model, head, remove=v):
            assert torch.equal(forward(model, batch), one)
            with ht.edit(model, other, remove=v):
                assert torch.equal(forward(model, batch), both)
            assert torch.equal(forward(model, batch), one)
        assert torch.equal(forward(model, batch), plain)


CHANGES = {
    "refit": lambda model, inputs: ht.refit(model, {("encoder", 1): [0]}, inputs),
    "merge": lambda model, inputs: ht.merge(model, [(("encoder", 1, 0), ("encoder", 1, 1))], inputs, refit=True),
    "prune": lambda model, inputs: ht.prune(model, {("encoder", 1): range(4), ("encoder", 0): [1]}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_heads_that_are_cut(bert, change):
    model, batch = bert
    inputs, twin = {name: batch[name] for name in ("input_ids", "attention_mask")}, copy.deepcopy(model)
    with half():
        before = forward(twin, batch)
        change(twin, inputs)
        after = forward(twin, batch)
    assert torch.equal(after, scores(twin, batch))
    assert error(before, after) > 0.01
    assert error(run(model, inputs), before) < 0.3


GEOMETRY = {
    "matrix": lambda model: geometry.ov(model)["encoder", 1].matrix(),
    "singular values": lambda model: geometry.ov(model)["encoder", 1].singular_values(),
    "form": lambda model: geometry.qk(model)["encoder", 1, 0].between(torch.eye(32), torch.eye(32)),
    "effective rank": lambda model: geometry.effective_rank(geometry.ov(model)).values["encoder", 1],
    "overlap": lambda model: geometry.overlap(geometry.ov(model)).values,
    "angles": lambda model: geometry.principal_angles(geometry.ov(model)),
    "cosine": lambda model: geometry.cosine(geometry.ov(model)).values,
    "composition": lambda model: geometry.composition(*ht.sites(model).all[:2]).values,
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_what_is_read_from_weights_has_their_precision(bert, name):
    model, _ = bert
    with half():
        inside = GEOMETRY[name](model)
        with ht.edit(model, ("encoder", 1, 1), drop_top=1):
            assert geometry.ov(model)["encoder", 1, 1].singular_values()[-1] < 1e-5
    assert torch.equal(inside, GEOMETRY[name](model))
