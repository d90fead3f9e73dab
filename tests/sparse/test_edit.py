"""Edits of one head: what goes is gone, what stays stays, and every bit comes back."""

import copy

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools.geometry.circuits import ov

from ..heads.reference import assert_same_state, output_matrix, state, untouched
from ..heads.zoo import MECHANISMS, fresh, run, valid, zoo_model

WHOLE = ("bert", "distilbert", "modernbert", "gpt2", "gpt_neox", "opt", "marian", "t5", "vit")  # a value for each head


def unit(n, seed=0):
    v = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return v / v.norm()


def last_head(model):
    site = list(ht.sites(model))[-1]
    return site, (*site.key, site.heads - 1)


def close(a, b):
    return torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_direction_is_written_no_more_and_all_else_stays(name):
    model, batch = fresh(name)
    site, head = last_head(model)
    before, plain, was = output_matrix(site).detach().clone(), run(model, batch), state(model)
    v = unit(before.shape[-1])
    with ht.edit(model, head, remove=3 * v):
        inside, edited = output_matrix(site).detach().clone(), run(model, batch)
    assert close(inside[-1], before[-1] - before[-1] @ v[:, None] * v)
    assert (inside[-1] @ v).abs().max() < 1e-6 < (before[-1] @ v).abs().max()
    assert torch.equal(inside[:-1], before[:-1])
    assert (valid(name, edited, batch) - valid(name, plain, batch)).abs().max() > 1e-6
    assert_same_state(was, state(model))
    assert torch.equal(run(model, batch), plain)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("k", [1, 3])
def test_dropping_the_top_takes_the_strongest_components(name, k):
    model, _ = fresh(name)
    site, head = last_head(model)
    matrix = ov(site)[head].matrix()
    u, s, vt = torch.linalg.svd(matrix)
    with ht.edit(model, head, drop_top=k):
        now = ov(ht.sites(model)[site.key])[head].matrix()
    assert close(now, matrix - u[:, :k] * s[:k] @ vt[:k])


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_read_any_more(name):
    model, _ = fresh(name)
    site, head = last_head(model)
    matrix = ov(site)[head].matrix()
    u = unit(matrix.shape[0], 1)
    with ht.edit(model, head, remove=u, side="read"):
        now = ov(ht.sites(model)[site.key])[head].matrix()
    assert close(now, matrix - torch.outer(u, u @ matrix))
    assert not close(now, matrix)


def test_the_wrong_formula_of_the_essay_makes_the_head_stronger():
    """W_OV − α u₁u₁ᵀ: u₁ is read, not written. The top component stays, and σ₁ does not fall (ledger 2.33)."""
    model, _ = ht.load()
    grew, kept = 0, 0
    for head in ov(ht.sites(model)["encoder"]):
        factored = ov(ht.sites(model)["encoder"])[head]
        u, s, v = factored.svd()
        wrong = torch.linalg.svd(factored.matrix() - s[0] * torch.outer(u[:, 0], u[:, 0]))
        grew += wrong.S[0] > s[0]
        kept += (wrong.Vh[0] @ v[:, 0]).abs() > 0.5
        with ht.edit(model, head, drop_top=1):
            assert ov(ht.sites(model)["encoder"])[head].svd()[1][0] == pytest.approx(s[1].item(), rel=1e-4)
    assert grew == 48
    assert kept > 24


def test_both_sides_of_its_own_strongest_are_one():
    model, _ = fresh("bert")
    head, seen = ("encoder", 1, 2), []
    for side in ("read", "write"):
        with ht.edit(model, head, drop_top=2, side=side):
            seen.append(ov(model)[head].matrix())
    assert close(*seen)


def test_the_value_bias_is_written_and_not_read():
    model, _ = fresh("bert")
    head = ("encoder", 1, 2)
    whole = ov(model, bias=True)[head].matrix()
    v, u = unit(32, 2), unit(32, 3)
    with ht.edit(model, head, remove=v):
        written = ov(model, bias=True)[head].matrix()
    with ht.edit(model, head, remove=u, side="read"):
        read = ov(model, bias=True)[head].matrix()
    assert close(written[-1], whole[-1] - (whole[-1] @ v) * v)
    assert torch.equal(read[-1], whole[-1])


def test_several_directions_are_one_subspace():
    model, _ = fresh("bert")
    head, v = ("encoder", 0, 0), torch.stack([unit(32, 1), unit(32, 2), unit(32, 1) * 2 + unit(32, 2)])
    with ht.edit(model, head, remove=v):
        assert (output_matrix(ht.sites(model)["encoder", 0])[0] @ v.T).abs().max() < 1e-6
        rank = torch.linalg.matrix_rank(ov(model)[head].matrix(), atol=1e-4)
    assert rank == 8  # a head of width 8 writes 8 of 32 directions: two of the 32 are gone, and none of its rank
    with ht.edit(model, head, drop_top=3):
        assert torch.linalg.matrix_rank(ov(model)[head].matrix(), atol=1e-4) == 5


def test_edits_nest_and_come_back_after_an_exception():
    model, batch = fresh("gpt2")
    plain, was = run(model, batch), state(model)
    first, second = ("decoder", 1, 0), ("decoder", 1, 1)
    with pytest.raises(KeyError, match="mine"), ht.edit(model, first, remove=unit(32)):  # noqa: PT012
        outer = run(model, batch)
        with ht.edit(model, first, drop_top=1), ht.edit(model, second, drop_top=2, side="read"):
            assert not torch.equal(run(model, batch), outer)
        assert torch.equal(run(model, batch), outer)
        raise KeyError("mine")
    assert_same_state(was, state(model))
    assert torch.equal(run(model, batch), plain)


@pytest.mark.parametrize("same_head", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_edits_end_in_any_order(first, same_head):
    model, batch = fresh("bert")
    plain, was = run(model, batch), state(model)
    heads = [("encoder", 1, 0), ("encoder", 1, 0 if same_head else 1)]
    edits = [ht.edit(model, head, remove=unit(32, seed)) for seed, head in enumerate(heads)]
    for one in edits:
        one.__enter__()
    edits[first].__exit__(None, None, None)
    left = run(model, batch)
    edits[1 - first].__exit__(None, None, None)
    assert_same_state(was, state(model))
    assert torch.equal(run(model, batch), plain)
    with ht.edit(model, heads[1 - first], remove=unit(32, 1 - first)):
        assert torch.equal(run(model, batch), left)


def test_a_copy_made_inside_keeps_the_edit_and_cuts_wait_for_its_end():
    model, batch = fresh("bert")
    head, labelled = ("encoder", 1, 0), batch | {"labels": batch["input_ids"]}
    with ht.edit(model, head, remove=unit(32)):
        inside, kept = run(model, batch), copy.deepcopy(model)
        for cut in (
            lambda: ht.prune(model, {("encoder", 0): [0]}),
            lambda: ht.refit(model, {("encoder", 0): [0]}, batch),
            lambda: ht.merge(model, [(head, ("encoder", 1, 1))], batch),
            lambda: ht.recover(model, [labelled], steps=1, in_place=True, progress=False),
            lambda: ht.fit_gates(model, [labelled], 0.1, steps=1, in_place=True, progress=False),
        ):
            with untouched(model), pytest.raises(RuntimeError, match=r"edit\(\) is open.*end the context first"):
                cut()
    assert torch.equal(run(kept, batch), inside)
    assert not torch.equal(run(model, batch), inside)
    ht.prune(kept, {("encoder", 0): [0]})


def test_a_model_that_changes_its_type_inside_gets_its_rows_back():
    model, _ = fresh("bert")
    before = output_matrix(ht.sites(model)["encoder", 1]).detach().clone()
    with ht.edit(model, ("encoder", 1, 0), remove=unit(32)):
        model.to(torch.bfloat16)
    assert torch.equal(output_matrix(ht.sites(model)["encoder", 1]), before.to(torch.bfloat16))


def test_a_bfloat16_model_keeps_its_type_and_gradients_their_flags():
    model, batch = fresh("llama")
    model.to(torch.bfloat16)
    site, head = last_head(model)
    v = unit(48)
    with ht.edit(model, head, remove=v):
        assert site.out.weight.dtype == torch.bfloat16
        assert (output_matrix(site)[-1].float() @ v).abs().max() < 0.02
        assert model(**batch).logits.requires_grad
    with torch.no_grad(), ht.edit(model, head, remove=v):
        assert not torch.is_grad_enabled()


def test_grouped_heads_have_their_own_outputs_and_shared_values():
    model, _ = fresh("llama")
    head = ("decoder", 0, 1)
    before = ov(model)
    with ht.edit(model, head, drop_top=1):
        after = ov(model)
    assert not close(after[head].matrix(), before[head].matrix())
    for h in (0, 2, 3, 4, 5):
        assert torch.equal(after["decoder", 0, h].matrix(), before["decoder", 0, h].matrix())
    with untouched(model), pytest.raises(ValueError, match="no values of its own: 3 heads share them"):
        ht.edit(model, head, drop_top=1, side="read").__enter__()


def test_latent_and_tied_and_silent_heads_are_refused():
    model, _ = fresh("deepseek_v3")
    with untouched(model), pytest.raises(ValueError, match="computed from a latent"):
        ht.edit(model, ("decoder", 0, 0), remove=unit(32), side="read").__enter__()
    with untouched(model), pytest.raises(ValueError, match="W_OV is not what its heads move"):
        ht.edit(model, ("decoder", 0, 0), drop_top=1).__enter__()
    model, _ = fresh("bert")
    layers = model.bert.encoder.layer
    layers[1].attention.output.dense.weight = layers[0].attention.output.dense.weight
    with untouched(model), pytest.raises(ValueError, match=r"they are tied: .*layer\.0.* and .*layer\.1"):
        ht.edit(model, ("encoder", 0, 0), remove=unit(32)).__enter__()
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): range(4)})
    with untouched(model), pytest.raises(ValueError, match="all heads of this layer are cut"):
        ht.edit(model, ("encoder", 0, 0), remove=unit(32)).__enter__()


def test_a_pruned_head_is_found_by_its_present_number():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [0]})
    with ht.edit(model, ("encoder", 0, 2), remove=unit(32)):
        assert (output_matrix(ht.sites(model)["encoder", 0])[2] @ unit(32)).abs().max() < 1e-6


BAD = float("nan")


@pytest.mark.parametrize(
    ("head", "what", "kind", "words"),
    [
        (("encoder", 0, 4), {"drop_top": 1}, IndexError, r"heads 0\.\.3"),
        (("encoder", 7, 0), {"drop_top": 1}, KeyError, "encoder"),
        (("encoder", 0), {"drop_top": 1}, TypeError, r"\(kind, layer, head\)"),
        (("encoder", 0, 0), {}, ValueError, "one of the two"),
        (("encoder", 0, 0), {"drop_top": 1, "remove": unit(32)}, ValueError, "one of the two"),
        (("encoder", 0, 0), {"drop_top": 0}, ValueError, "1 to 8, got 0"),
        (("encoder", 0, 0), {"drop_top": 9}, ValueError, "1 to 8, got 9"),
        (("encoder", 0, 0), {"drop_top": True}, ValueError, "got True"),
        (("encoder", 0, 0), {"drop_top": 1, "side": "both"}, ValueError, '"read" or "write"'),
        (("encoder", 0, 0), {"remove": unit(8)}, ValueError, r"got .*\(8,\).*writes vectors of 32 numbers"),
        (("encoder", 0, 0), {"remove": unit(8), "side": "read"}, ValueError, "reads vectors of 32"),
        (("encoder", 0, 0), {"remove": torch.zeros(32)}, ValueError, "has no direction"),
        (("encoder", 0, 0), {"remove": torch.full((32,), BAD)}, ValueError, "has no direction"),
        (("encoder", 0, 0), {"remove": torch.zeros(0, 32)}, ValueError, r"got directions of shape \(0, 32\)"),
        (("encoder", 0, 0), {"remove": torch.ones(32).long()}, TypeError, "got torch.int64"),
        (("encoder", 0, 0), {"remove": [1.0] * 32}, TypeError, "got list"),
    ],
)
def test_bad_input_is_refused_before_anything_is_changed(head, what, kind, words):
    model, _ = zoo_model("bert")
    with untouched(model), pytest.raises(kind, match=words), ht.edit(model, head, **what):
        pass


def test_whole_numbers_for_weights_are_refused():
    model = tf.BertModel(
        tf.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    )
    layer = model.encoder.layer[0].attention.output.dense
    layer.weight = torch.nn.Parameter(layer.weight.mul(9).to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match="does not keep its weight as a floating-point tensor"):
        ht.edit(model, ("encoder", 0, 0), remove=unit(8)).__enter__()
