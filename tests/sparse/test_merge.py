"""Merging heads: the least squares are solved, on every kind of projection, and the model computes what they say.

That refitting is linear regression, and that copies merge without loss, the differential harness tests as well.
"""

import pytest
import torch

import headtools as ht
from headtools.geometry.circuits import ov
from headtools.heads._layout import is_transposed
from headtools.sparse._least_squares import moments
from headtools.sparse.merge import disjoint_pairs, head_similarity, merge, refit

from ..heads.batches import VOCAB
from ..heads.reference import bias_of, output_matrix, watch
from ..heads.zoo import ALL, fresh, run, zoo_model
from .ridges import ridge

SEQ2SEQ = ("marian", "t5", "encoder_decoder")
FUSED_AND_SEPARATE = ("bert", "modernbert", "gpt2", "gpt_neox", *SEQ2SEQ)
PAIR = [(("encoder", 0, 0), ("encoder", 0, 1))]


def many(seed, rows=60, tokens=7, name="bert"):
    """Enough tokens for a fit in 32 dimensions, some of them padding."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (rows, tokens), generator=draw)
    mask = torch.arange(tokens) < torch.randint(4, tokens + 1, (rows, 1), generator=draw)
    batch = {"input_ids": ids * mask, "attention_mask": mask.long()}
    if name in SEQ2SEQ:
        batch["decoder_input_ids"] = torch.randint(3, VOCAB, (rows, 5), generator=draw)
    return batch


def make_twins(site, first, second):
    """Give a head the queries, keys and values of another."""
    with torch.no_grad():
        for projection in (site.q, site.k, site.v):
            weight = projection.module.weight.T if is_transposed(projection.module) else projection.module.weight
            rows, other = projection.rows[first], projection.rows[second]
            for tensor in (weight, getattr(projection.module, "bias", None)):
                if tensor is not None:
                    tensor[other] = tensor[rows]
        table = getattr(site.module, "relative_attention_bias", None)
        if table is not None:
            table.weight[:, second] = table.weight[:, first]


@pytest.mark.parametrize("name", FUSED_AND_SEPARATE)
def test_heads_with_one_map_and_one_value_become_one_and_nothing_is_lost(name):
    model, _ = fresh(name)
    groups = []
    for site in ht.sites(model):
        make_twins(site, 0, 2)
        groups.append(((*site.key, 0), (*site.key, 2)))
    plain = run(model, many(1, name=name))
    with ridge(0.0):
        frame = merge(model, groups, many(0, rows=150, name=name))
    assert [site.heads for site in ht.sites(model)] == [3] * len(groups)
    assert frame.relative_error.max() < 1e-6
    assert frame.dropped.min() > 0.05
    assert (run(model, many(1, name=name)) - plain)[:, :4].abs().max() < 2e-3 * plain.abs().max()


def test_the_fit_is_the_best_of_its_rank():
    """Token by token, and by another road: fit, then the truncated SVD of the fitted values."""
    model, _ = fresh("bert")
    site, batch, inputs = ht.sites(model)["encoder", 1], many(2, rows=30), []
    handle = site.v.module.register_forward_pre_hook(lambda _m, args: inputs.append(args[0].double()))
    with ht.record(model) as seen:
        run(model, batch)
    handle.remove()
    maps, z, real = seen[site].maps.double(), seen[site].z.double(), batch["attention_mask"].bool()
    target = sum(z[:, :, h] @ output_matrix(site)[h].double() for h in (1, 3))[real].detach()
    target, missed = target - target.mean(0), {}
    for head in (1, 3):
        mixed = (maps[:, head] @ inputs[0])[real]
        mixed = torch.cat([mixed, mixed.new_ones(len(mixed), 1)], 1)
        # inputs come out of a layer normalisation: one of their directions is rounding, and no fit should use it
        fitted = mixed @ torch.linalg.lstsq(mixed, target, rcond=3e-5, driver="gelsd").solution
        u, s, vt = torch.linalg.svd(fitted, full_matrices=False)
        best = u[:, :8] * s[:8] @ vt[:8]
        missed[head] = float((target - best).square().sum() / target.square().sum())
    with ridge(0.0):
        frame = merge(model, [(("encoder", 1, 1), ("encoder", 1, 3))], batch)
    assert frame.kept[0] == min(missed, key=missed.get)
    assert frame.removed[0] == ({1, 3}.difference([frame.kept[0]]).pop(),)
    assert frame.relative_error[0] == pytest.approx(min(missed.values()), rel=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("bert", "encoder"), ("gpt2", "decoder"), ("t5", "encoder")])
@pytest.mark.parametrize("refitted", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.01])
def test_the_cut_model_misses_what_the_frame_says(name, kind, refitted, weight):
    """From the weights that were written: the first layer's output before and after, on the same inputs."""
    (model, _), key, batch = fresh(name), (kind, 0), many(3, name=name)
    real = batch["attention_mask"].bool()

    def output():
        with watch([ht.sites(model)[key]]) as seen:
            run(model, batch)
        return seen[key][0][1][real].detach().double(), seen[key][0][0][real].detach().double()

    before, z = output()
    site = ht.sites(model)[key]
    old, free = output_matrix(site).detach().double().clone(), getattr(site.out, "bias", None) is not None
    pair = z.unflatten(-1, (site.heads, site.value_dim))[:, [0, 3]]
    target = (before - bias_of(site.out)).detach() if refitted else torch.einsum("nhv,hvd->nd", pair, old[[0, 3]])
    with ridge(weight):
        frame = merge(model, [((*key, 0), (*key, 3))], batch, refit=refitted)
    rest = before - output()[0]
    size = (target - target.mean(0)).square().sum() if free else target.square().sum()
    assert frame.relative_error[0] == pytest.approx(float(rest.square().sum() / size), rel=1e-3, abs=1e-7)
    assert 0 < frame.relative_error[0] < frame.dropped[0]
    if free:
        assert rest.mean(0).abs().max() < 1e-4, "the bias takes the mean"


def test_merging_and_refitting_misses_no_more_than_refitting_alone():
    for seed in range(3):
        (model, _), (other, _), batch = fresh("bert"), fresh("bert"), many(10 + seed)
        groups = [(("encoder", 1, 0), ("encoder", 1, 1)), (("encoder", 1, 2), ("encoder", 1, 3))]
        with ridge(0.0):
            merged = merge(model, groups, batch, refit=True)
        with ridge(0.0):
            alone = refit(other, ht.pruned(model), batch)
        assert merged.relative_error[0] == merged.relative_error[1]
        assert merged.relative_error[0] <= alone.relative_error[0] + 1e-9


def test_a_large_ridge_is_cutting_and_a_small_one_is_none():
    free, held, bare = (fresh("bert")[0] for _ in range(3))
    batch = many(5)
    with ridge(1e9):
        merge(held, PAIR, batch)
    ht.prune(bare, ht.pruned(held))
    held, bare = (ov(ht.sites(m)["encoder", 0])["encoder", 0].matrix() for m in (held, bare))
    assert torch.allclose(held, bare, atol=1e-4)
    with ridge(0.0):
        exact = merge(free, PAIR, batch)
    with ridge(1e-8):
        nearly = merge(fresh("bert")[0], PAIR, batch)
    assert exact.relative_error[0] == pytest.approx(nearly.relative_error[0], rel=1e-4)


def test_padding_counts_for_nothing():
    model, _ = fresh("bert")
    batch, site = many(6, rows=8), ht.sites(model)["encoder", 1]
    together = moments(model, batch, {site: [0, 2]})["encoder", 1]
    lengths = batch["attention_mask"].sum(1).tolist()
    alone = [{name: value[i : i + 1, :n] for name, value in batch.items()} for i, n in enumerate(lengths)]
    apart = moments(model, alone, {site: [0, 2]})["encoder", 1]
    assert together.count == apart.count == sum(lengths)
    assert torch.allclose(together.products, apart.products, rtol=1e-4, atol=1e-3)


def test_three_heads_and_what_is_left_of_the_numbers():
    model, batch = fresh("bert")[0], many(7)
    frame = merge(model, [(("encoder", 2, 0), ("encoder", 2, 1), ("encoder", 2, 3))], batch)
    assert ht.sites(model)["encoder", 2].original == tuple(sorted({frame.kept[0], 2}))
    assert set(frame.removed[0]) | {frame.kept[0]} == {0, 1, 3}
    again = merge(model, [(("encoder", 2, 0), ("encoder", 2, 1))], batch)
    assert len(ht.pruned(model)) == 3
    assert again.relative_error[0] < again.dropped[0]


def test_the_fit_sees_the_model_as_it_was():
    """Two layers in one call are fitted on the same run, so the order of the groups does not matter."""
    first, second = fresh("bert")[0], fresh("bert")[0]
    groups, batch = [(("encoder", n, 0), ("encoder", n, 1)) for n in (0, 2)], many(9)
    merge(first, groups, batch)
    merge(second, groups[::-1], batch)
    assert torch.equal(run(first, batch), run(second, batch))


def test_every_architecture_is_merged_or_refused_whole():
    """No half-changed model, whatever it is: after an error it is as it was, after none it has a head less."""
    for name in ALL:
        model, batch = fresh(name)
        site = next(iter(ht.sites(model)))
        before = run(model, batch)
        try:
            merge(model, [((*site.key, 0), (*site.key, 1))], batch)
        except ValueError:
            assert torch.equal(run(model, batch), before), name
        else:
            assert ht.sites(model)[site.key].heads == site.heads - 1, name
            assert run(model, batch).isfinite().all(), name


def test_a_bias_that_two_layers_share_changes_in_one():
    model, batch = fresh("bert")
    site, other = list(ht.sites(model))[1:]
    other.out.bias = site.out.bias
    before = other.out.bias.detach().clone()
    refit(model, {site.key: [0]}, batch)
    assert torch.equal(ht.sites(model)[other.key].out.bias, before)
    assert not torch.equal(ht.sites(model)[site.key].out.bias, before)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_frame_tells_what_weights_of_sixteen_bits_miss(name):
    """Few tokens, which a fit in double precision would reproduce entirely."""
    model, batch = fresh(name)
    model = model.to(torch.bfloat16)
    site = ht.sites(model).all[0]
    with ht.record(model, want=("maps", "z")) as seen:  # by the attention function that the fit sees
        run(model, batch)
    z, old = seen[site].z[batch["attention_mask"].bool()].double(), output_matrix(site).detach().double().clone()
    with ridge(0):
        frame = refit(model, {site.key: [0]}, batch)
    new = output_matrix(ht.sites(model)[site.key]).detach().double()
    target = torch.einsum("nhv,hvd->nd", z, old)
    rest = target - torch.einsum("nhv,hvd->nd", z[:, 1:], new)
    missed = (rest - rest.mean(0)).square().sum() / (target - target.mean(0)).square().sum()
    assert frame.relative_error[0] == pytest.approx(missed.item(), rel=1e-3)
    assert frame.relative_error[0] > 1e-7
    if name == "bert":  # merged values are rounded as well
        rounded, exact = fresh(name)[0].to(torch.bfloat16), fresh(name)[0].to(torch.bfloat16).double()
        with ridge(0):
            errors = [merge(m, PAIR, many(3, rows=1)).relative_error[0] for m in (rounded, exact)]
        assert errors[0] > errors[1] + 1e-8


def test_similarity_is_what_loops_find_and_twins_come_first():
    (model, batch), key = zoo_model("bert"), ("encoder", 1)
    frame = head_similarity(model, [batch], [key])
    assert len(frame) == 6
    with ht.record(model, want="maps") as seen:
        run(model, batch)
    maps, real = seen[key].maps, batch["attention_mask"].bool()
    row = frame[(frame["first"] == (*key, 0)) & (frame["second"] == (*key, 2))].iloc[0]
    distance = (maps[:, 0] - maps[:, 2]).abs().sum(-1)[real].mean() / 2
    assert row.map_distance == pytest.approx(distance.item(), rel=1e-5)
    model, _ = fresh("bert")
    make_twins(ht.sites(model)[key], 0, 3)
    with ridge(0.0):
        frame = head_similarity(model, [many(0)], ["encoder"])
    top = frame.iloc[0]
    assert (top["first"], top["second"]) == ((*key, 0), (*key, 3))
    assert top.layer_error < 1e-9 < frame.layer_error[1]
    assert top.map_distance < 1e-6
    assert len({head for pair in disjoint_pairs(frame, 6) for head in pair}) == 12
