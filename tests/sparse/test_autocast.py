"""Inside one autocast region, which keeps weights in half precision, all is as if each part had a region of its own."""

import copy

import peft
import pytest
import torch

import headtools as ht
from headtools import geometry
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


def loss(model, batch):
    """The model's loss, in a region that lasts for one run: of the old form, which runs the model itself."""
    with half():
        return model(**batch).loss


def forward(model, batch):
    """Logits with gradients on: autocast keeps the weights of such runs."""
    return model(**batch).logits.detach().float()


def scores(model, batch):
    """The same in a region of its own."""
    with half():
        return forward(model, batch)


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_recover(bert):
    model, batch = bert
    with half():
        inside = recover(model, [batch], rate=RATE, **RUN)
    outside = recover(model, [batch], rate=RATE, loss=loss, **RUN)
    assert same_weights(inside, outside)
    assert not same_weights(inside, model)


def test_fit_gates(bert):
    model, batch = bert
    with half():
        inside = fit_gates(model, [batch], 0.01, weight_rate=RATE, **RUN)
    outside = fit_gates(model, [batch], 0.01, weight_rate=RATE, loss=loss, **RUN)
    assert same_weights(inside.model, outside.model)
    assert inside.history.equals(outside.history)
    assert inside.losses.equals(outside.losses)


def test_a_run_that_goes_on(bert, tmp_path):
    model, batch = bert
    options = RUN | {"rate": RATE, "save_every": 2, "checkpoint": tmp_path}
    whole = recover(model, [batch], rate=RATE, loss=loss, **RUN)

    def stops(student, batch):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return student(**batch).loss

    calls = []
    with pytest.raises(KeyboardInterrupt), half():
        recover(model, [batch], loss=stops, **options)
    with half():
        forward(model, batch)
        assert same_weights(recover(model, [batch], **options), whole)


@pytest.mark.parametrize("learn", ["recover", "fit_gates"])
def test_training_in_place(bert, learn):
    model, batch = bert
    with half():
        forward(model, batch)
        if learn == "recover":
            recover(model, [batch], rate=RATE, in_place=True, **RUN)
        else:
            fit_gates(model, [batch], 0.01, weight_rate=RATE, in_place=True, **RUN)
        after = forward(model, batch)
    assert torch.equal(after, scores(model, batch))


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
    with ht.edit(model, head, remove=v), half():
        assert torch.equal(forward(model, batch), one)
    with half(), ht.edit(model, head, remove=v):
        assert torch.equal(forward(model, batch), one)


@pytest.mark.parametrize("change", ["refit", "merge", "prune"])
def test_heads_that_are_cut(bert, change):
    model, batch = bert
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    twin = copy.deepcopy(model)
    with half():
        before = forward(twin, batch)
        if change == "refit":
            ht.refit(twin, {("encoder", 1): [0]}, inputs)
        elif change == "merge":
            ht.merge(twin, [(("encoder", 1, 0), ("encoder", 1, 1))], inputs, refit=True)
        else:
            ht.prune(twin, {("encoder", 1): range(4), ("encoder", 0): [1]})
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
    assert torch.equal(inside, GEOMETRY[name](model))


def test_the_strongest_direction_goes_to_full_precision(bert):
    model, _ = bert
    with half(), ht.edit(model, ("encoder", 1, 1), drop_top=1):
        inside = geometry.ov(model)["encoder", 1, 1].singular_values()
    assert inside[-1] < 1e-5


def test_adapters_count_in_full_precision(bert):
    model, _ = bert
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["value", "query"], init_lora_weights=False))
    with half():
        inside = geometry.ov(model)["encoder", 1].left
    assert torch.equal(inside, geometry.ov(model)["encoder", 1].left)
