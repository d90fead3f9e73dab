"""Edits of one head: what goes is gone, what stays stays, and every bit comes back.

That a head writes nothing along what was removed, and loses its strongest first, are laws: ``test_laws.py``.
"""

import copy

import pytest
import torch

import headtools as ht
from headtools.geometry.circuits import ov

from ..heads.reference import assert_same_state, output_matrix, state, untouched
from ..heads.zoo import fresh, run

WHOLE = ("bert", "modernbert", "gpt2", "gpt_neox", "opt", "t5")  # a value for each head


def unit(n, seed=0):
    v = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return v / v.norm()


def last_head(model):
    site = list(ht.sites(model))[-1]
    return site, (*site.key, site.heads - 1)


def close(a, b):
    return torch.allclose(a, b, atol=1e-5)


def test_directions_that_say_the_same_take_one_away():
    model, _ = fresh("bert")
    head, v = ("encoder", 1, 2), unit(32, 2)
    with ht.edit(model, head, remove=v):
        once = ov(model)[head].matrix()
    with ht.edit(model, head, remove=torch.stack([v, -2 * v])):
        assert close(ov(model)[head].matrix(), once)


def test_what_the_value_bias_writes_goes_as_well():
    model, _ = fresh("bert")
    head, v = ("encoder", 1, 2), unit(32, 2)
    whole = ov(model, bias=True)[head].matrix()
    with ht.edit(model, head, remove=v):
        written = ov(model, bias=True)[head].matrix()
    assert close(written[-1], whole[-1] - (whole[-1] @ v) * v)


@pytest.mark.parametrize("same_head", [True, False])
def test_edits_nest_and_come_back_after_an_exception(same_head):
    model, batch = fresh("gpt2")
    plain, was = run(model, batch), state(model)
    first, second = ("decoder", 1, 0), ("decoder", 1, 0 if same_head else 1)
    with pytest.raises(KeyError, match="mine"), ht.edit(model, first, remove=unit(32)):  # noqa: PT012
        outer = run(model, batch)
        with ht.edit(model, second, remove=unit(32, 5)), ht.edit(model, second, remove=unit(32, 3)):
            assert not torch.equal(run(model, batch), outer)
        assert torch.equal(run(model, batch), outer)
        raise KeyError("mine")
    assert_same_state(was, state(model))
    assert torch.equal(run(model, batch), plain)


def test_a_copy_made_inside_keeps_the_edit_and_cuts_wait_for_its_end():
    model, batch = fresh("bert")
    head = ("encoder", 1, 0)
    with ht.edit(model, head, remove=unit(32)):
        inside, kept = run(model, batch), copy.deepcopy(model)
        for cut in (
            lambda: ht.prune(model, {("encoder", 0): [0]}),
            lambda: ht.refit(model, {("encoder", 0): [0]}, batch),
            lambda: ht.merge(model, [(head, ("encoder", 1, 1))], batch),
        ):
            with untouched(model), pytest.raises(RuntimeError, match=r"edit\(\) is open.*end the context first"):
                cut()
    assert torch.equal(run(kept, batch), inside)
    assert not torch.equal(run(model, batch), inside)
    ht.prune(kept, {("encoder", 0): [0]})


def test_a_bfloat16_model_keeps_its_type_and_one_that_changes_it_inside_gets_its_rows_back():
    model, batch = fresh("llama")
    site, head = last_head(model)
    before, v = output_matrix(site).detach().clone(), unit(48)
    with ht.edit(model, head, remove=v):
        model.to(torch.bfloat16)
    assert torch.equal(output_matrix(site), before.to(torch.bfloat16))
    with ht.edit(model, head, remove=v):
        assert site.out.weight.dtype == torch.bfloat16
        assert (output_matrix(site)[-1].float() @ v).abs().max() < 0.02
        assert model(**batch).logits.requires_grad


def test_grouped_heads_have_outputs_of_their_own():
    model, _ = fresh("llama")
    before, head = ov(model), ("decoder", 0, 1)
    with ht.edit(model, head, remove=before[head].svd()[2][:, 0]):
        after = ov(model)
    assert not close(after[head].matrix(), before[head].matrix())
    for h in (0, 2, 3, 4, 5):
        assert torch.equal(after["decoder", 0, h].matrix(), before["decoder", 0, h].matrix())


def test_a_pruned_head_is_found_by_its_present_number():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [0]})
    with ht.edit(model, ("encoder", 0, 2), remove=unit(32)):
        assert (output_matrix(ht.sites(model)["encoder", 0])[2] @ unit(32)).abs().max() < 1e-6
