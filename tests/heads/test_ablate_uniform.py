"""Even attention: maps of equal weights, what they give, and what the model is left with."""

import pytest
import torch

import headtools as ht

from .reference import some_heads, untouched, watch
from .zoo import BUILDERS, INTERFACE, error, fresh, run, valid, zoo_model

EVEN = tuple(name for name in INTERFACE if name != "gpt_oss")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", EVEN)
def test_chosen_heads_look_evenly_at_all_they_may_see(name, side):
    model, batch = zoo_model(name, side)
    sites = list(ht.sites(model))
    heads = some_heads(sites)
    with ht.record(model, want=("maps",)) as plain:
        run(model, batch)
    with untouched(model), ht.ablate(model, heads, by="uniform"), ht.record(model, want=("maps",)) as seen:
        run(model, batch)
    first = sites[0]
    kept = [head for head in range(first.heads) if head not in heads[first.key]]
    if name != "albert":  # whose only site runs again on what it changed itself
        assert torch.equal(seen[first].maps[:, kept], plain[first].maps[:, kept])
    for site in sites:
        maps = seen[site].maps[:, heads[site.key]]
        visible = plain[site].maps.amax(1, keepdim=True) > 0  # every head of a layer may see the same tokens
        even = visible / visible.sum(-1, keepdim=True)
        assert (maps - even).abs().max() <= 1e-6, site.label
        if site is first:
            assert (plain[site].maps[:, heads[site.key]] - even).abs().max() > 0.01, "it was even before"


@pytest.mark.parametrize("name", [name for name in EVEN if name != "albert"])
def test_outputs_are_the_means_of_the_values(name):
    model, batch = zoo_model(name)
    site = next(iter(ht.sites(model)))
    with ht.record(model, want=("maps", "v", "z")) as plain:
        run(model, batch)
    values = plain[site].v.repeat_interleave(site.heads // plain[site].v.shape[1], 1)
    visible = (plain[site].maps.amax(1, keepdim=True) > 0).float()
    mean = (visible / visible.sum(-1, keepdim=True)) @ values  # (B, head, query, value_dim)
    with ht.ablate(model, {site.key: [1]}, by="uniform"), ht.record(model, want=("z",)) as seen:
        run(model, batch)
    z, before = seen[site].z, plain[site].z
    real = batch["attention_mask"].bool() if BUILDERS[name][1] in ("text", "causal", "seq2seq") else ...
    assert error(z[:, :, 1][real], mean[:, 1][real]) <= 1e-5  # padding may see nothing: kernels then differ
    assert error(z[:, :, 0][real], before[:, :, 0][real]) <= 1e-5


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "marian"])
def test_whichever_kernel_the_model_runs(name):
    model, batch = fresh(name)
    heads = some_heads(ht.sites(model))
    found = {}
    for kernel in ("sdpa", "eager"):
        model.set_attn_implementation(kernel)
        with untouched(model), ht.ablate(model, heads, by="uniform"):
            found[kernel] = run(model, batch)
        plain = run(model, batch)
    assert error(valid(name, found["sdpa"], batch), valid(name, found["eager"], batch)) <= 1e-5 * plain.abs().max()
    assert error(found["eager"], plain) > 1e-3


def test_a_head_that_may_see_one_token_does_not_change():
    model, batch = zoo_model("gpt2")
    with ht.ablate(model, {("decoder", 0): [0, 1, 2, 3]}, by="uniform"):
        even = run(model, batch)
    plain = run(model, batch)
    assert error(even[:, 0], plain[:, 0]) <= 1e-5
    assert error(even[0, 1], plain[0, 1]) > 1e-3


def test_contexts_nest_and_end_by_themselves():
    model, batch = zoo_model("bert")
    sites = list(ht.sites(model))
    with ht.ablate(model, {("encoder", 0): [0]}, by="uniform"):
        with ht.ablate(model, {("encoder", 0): [2], ("encoder", 1): [1]}, by="uniform"):
            both = run(model, batch)
        with untouched(model), pytest.raises(ZeroDivisionError), ht.ablate(model, {("encoder", 0): [3]}, by="uniform"):
            raise ZeroDivisionError
        one = run(model, batch)
    with ht.ablate(model, {("encoder", 0): [0, 2], ("encoder", 1): [1]}, by="uniform"):
        assert torch.equal(run(model, batch), both)
    with ht.ablate(model, {("encoder", 0): [0]}, by="uniform"):
        assert torch.equal(run(model, batch), one)
    with watch(sites) as seen:
        run(model, batch)
    assert len(seen["encoder", 0]) == 1


def test_with_zeros_and_gates():
    model, batch = zoo_model("bert")
    with ht.ablate(model, {("encoder", 1): [2]}):
        off = run(model, batch)
        with ht.ablate(model, {("encoder", 1): [2]}, by="uniform"):
            assert error(run(model, batch), off) <= 1e-6


def test_a_pruned_t5_has_biases_of_its_own():
    model, batch = fresh("t5")
    with (
        ht.ablate(model, {("encoder", 1): [0], ("decoder", 0): [2]}),
        ht.ablate(model, {("encoder", 1): [3]}, by="uniform"),
    ):
        wanted = run(model, batch)
    ht.prune(model, {("encoder", 1): [0], ("decoder", 0): [2]})
    with ht.ablate(model, {("encoder", 1): [2]}, by="uniform"):  # number 3 of before
        assert error(run(model, batch), wanted) <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize(
    ("name", "message"), [("bloom", "does not use transformers' AttentionInterface"), ("gpt_oss", "attention sinks")]
)
def test_what_cannot_be_even_is_refused(name, message):
    model, _ = zoo_model(name)
    site = next(iter(ht.sites(model)))
    with untouched(model), pytest.raises(ValueError, match=message), ht.ablate(model, {site.key: [0]}, by="uniform"):
        pass


def test_empty_batches_are_refused():
    model, batch = zoo_model("bert")
    empty = {key: value[:0] for key, value in batch.items()}
    with pytest.raises(ValueError, match="the batch is empty"), ht.ablate(model, {("encoder", 0): [0]}, by="uniform"):
        model(**empty)
