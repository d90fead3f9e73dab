"""Merging heads: the least squares are solved, on every kind of projection, and the model computes what they say."""

import pytest
import torch

import headtools as ht
from headtools.geometry.circuits import ov
from headtools.sparse._least_squares import moments
from headtools.sparse.head_similarity import disjoint_pairs, head_similarity
from headtools.sparse.merge import merge, refit

from ..heads.batches import VOCAB
from ..heads.reference import bias_of, output_matrix, untouched, watch
from ..heads.zoo import ALL, fresh, run, zoo_model

WHOLE = ("bert", "distilbert", "modernbert", "gpt2", "gpt_neox", "opt", "marian", "bart", "t5", "encoder_decoder")


def many(seed, rows=60, tokens=7, name="bert"):
    """Enough tokens for a fit in 32 dimensions, some of them padding."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (rows, tokens), generator=draw)
    mask = torch.arange(tokens) < torch.randint(4, tokens + 1, (rows, 1), generator=draw)
    batch = {"input_ids": ids * mask, "attention_mask": mask.long()}
    if name in ("marian", "bart", "t5", "encoder_decoder"):
        batch["decoder_input_ids"] = torch.randint(3, VOCAB, (rows, 5), generator=draw)
    return batch


def rows_of(projection, head):
    """Views of one head's weight and bias: (width, d), (width,) or None."""
    weight = projection.module.weight.T if projection.transposed else projection.module.weight
    return weight, getattr(projection.module, "bias", None), projection.rows[head]


def make_twins(site, first, second, values=True):
    """Give a head the queries and keys of another, and, if asked, its values."""
    with torch.no_grad():
        for projection in (site.q, site.k, site.v) if values else (site.q, site.k):
            weight, bias, rows = rows_of(projection, first)
            other = projection.rows[second]
            weight[other] = weight[rows]
            if bias is not None:
                bias[other] = bias[rows]
        table = getattr(site.module, "relative_attention_bias", None)
        if table is not None:
            table.weight[:, second] = table.weight[:, first]


@pytest.mark.parametrize("name", WHOLE)
def test_heads_with_one_map_and_one_value_become_one_and_nothing_is_lost(name):
    model, _ = fresh(name)
    groups = []
    for site in ht.sites(model):
        make_twins(site, 0, 2)
        groups.append(((*site.key, 0), (*site.key, 2)))
    plain, seen = run(model, many(1, name=name)), many(0, rows=150, name=name)
    frame = merge(model, groups, seen, ridge=0.0)
    assert [site.heads for site in ht.sites(model)] == [3] * len(groups)
    assert frame.relative_error.max() < 1e-6
    assert frame.dropped.min() > 0.05
    now = run(model, many(1, name=name))
    assert (now - plain)[:, :4].abs().max() < 2e-3 * plain.abs().max()


def by_hand(model, site, batch, heads):
    """What heads mix and write, token by token: {head: (n, d_in + 1)}, {head: (n, d)}, in double precision."""
    inputs = []
    handle = site.v.module.register_forward_pre_hook(lambda _m, args: inputs.append(args[0]))
    with ht.record(model) as seen:
        run(model, batch)
    handle.remove()
    maps, z, y = seen[site].maps.double(), seen[site].z.double(), inputs[0].double()
    mixed, written = {h: [] for h in heads}, {h: [] for h in range(site.heads)}
    for b in range(len(y)):
        for t in range(y.shape[1]):
            if not batch["attention_mask"][b, t]:
                continue
            for h in heads:
                row = sum(maps[b, h, t, s] * y[b, s] for s in range(y.shape[1]))
                mixed[h].append(torch.cat([row, row.new_ones(1)]))
            for h in written:
                written[h].append(z[b, t, h] @ output_matrix(site)[h].double())
    return {h: torch.stack(some) for h, some in mixed.items()}, {h: torch.stack(some) for h, some in written.items()}


def missed_by_hand(mix, target, rank):
    """Reduced-rank regression by another road: fit, then the truncated SVD of the fitted values."""
    target = (target - target.mean(0)).detach()
    # inputs come out of a layer normalisation: one of their directions is rounding, and no fit should use it
    fitted = mix @ torch.linalg.lstsq(mix, target, rcond=3e-5, driver="gelsd").solution
    u, s, vt = torch.linalg.svd(fitted, full_matrices=False)
    best = u[:, :rank] * s[:rank] @ vt[:rank]
    return float((target - best).square().sum() / target.square().sum())


def test_the_fit_is_the_best_of_its_rank():
    model, _ = fresh("bert")
    site, batch = ht.sites(model)["encoder", 1], many(2, rows=30)
    mixed, written = by_hand(model, site, batch, (1, 3))
    by_head = {h: missed_by_hand(mixed[h], written[1] + written[3], 8) for h in (1, 3)}
    frame = merge(model, [(("encoder", 1, 1), ("encoder", 1, 3))], batch, ridge=0.0)
    assert frame.kept[0] == min(by_head, key=by_head.get)
    assert frame.relative_error[0] == pytest.approx(min(by_head.values()), rel=1e-5)
    assert frame.removed[0] == ({1, 3}.difference([frame.kept[0]]).pop(),)


@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bert", ("encoder", 0)),
        ("gpt2", ("decoder", 0)),
        ("gpt_neox", ("decoder", 0)),
        ("t5", ("encoder", 0)),
        ("marian", ("encoder", 0)),
    ],
)
@pytest.mark.parametrize("refitted", [False, True])
def test_the_cut_model_misses_what_the_frame_says(name, key, refitted, ridge):
    """From the weights that were written: the first layer's output before and after, on the same inputs."""
    model, _ = fresh(name)
    batch = many(3, name=name)
    real = batch["attention_mask"].bool()

    def output():
        sites = ht.sites(model)
        with watch([sites[key]]) as seen:
            run(model, batch)
        return seen[key][0][1][real].detach().double(), seen[key][0][0][real].detach().double()

    before, z = output()
    site = ht.sites(model)[key]
    old, free = output_matrix(site).detach().double().clone(), getattr(site.out, "bias", None) is not None
    pair = z.unflatten(-1, (site.heads, site.value_dim))[:, [0, 3]]
    target = (before - bias_of(site.out)).detach() if refitted else torch.einsum("nhv,hvd->nd", pair, old[[0, 3]])
    frame = merge(model, [((*key, 0), (*key, 3))], batch, refit=refitted, ridge=ridge)
    after, _ = output()
    rest = before - after
    size = (target - target.mean(0)).square().sum() if free else target.square().sum()
    assert frame.relative_error[0] == pytest.approx(float(rest.square().sum() / size), rel=1e-3, abs=1e-7)
    assert 0 < frame.relative_error[0] < frame.dropped[0]
    if free:
        assert rest.mean(0).abs().max() < 1e-4, "the bias takes the mean"


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_refitting_is_linear_regression(name):
    model, _ = fresh(name)
    key = next(iter(ht.sites(model))).key
    batch = many(4)
    real, site = batch["attention_mask"].bool(), ht.sites(model)[key]
    with watch([site]) as seen:
        run(model, batch)
    z, y = seen[key][0][0][real].double(), seen[key][0][1][real].double()
    stay = [h for h in range(site.heads) if h not in (0, 2)]
    given = z.unflatten(-1, (site.heads, -1))[:, stay].flatten(1)
    free = getattr(site.out, "bias", None) is not None
    if free:
        given = torch.cat([given, given.new_ones(len(given), 1)], 1)
    want = torch.linalg.lstsq(given, y, driver="gelsd").solution
    frame = refit(model, {key: [0, 2]}, batch, ridge=0.0)
    now = ht.sites(model)[key]
    width = len(stay) * now.value_dim
    assert torch.allclose(output_matrix(now).flatten(0, 1).double(), want[:width], atol=1e-4)
    if free:
        assert torch.allclose(now.out.bias.double(), want[-1], atol=1e-4)
    assert frame.removed[0] == (0, 2)
    assert frame.kept[0] == tuple(stay)


def test_merging_and_refitting_misses_no_more_than_refitting_alone():
    for seed in range(3):
        model, _ = fresh("bert")
        other, _ = fresh("bert")
        batch = many(10 + seed)
        groups = [(("encoder", 1, 0), ("encoder", 1, 1)), (("encoder", 1, 2), ("encoder", 1, 3))]
        merged = merge(model, groups, batch, refit=True, ridge=0.0)
        alone = refit(other, ht.pruned(model), batch, ridge=0.0)
        assert merged.relative_error[0] == merged.relative_error[1]
        assert merged.relative_error[0] <= alone.relative_error[0] + 1e-9


def test_a_large_ridge_is_cutting_and_a_small_one_is_none():
    free, held, bare = (fresh("bert")[0] for _ in range(3))
    group, batch = [(("encoder", 0, 0), ("encoder", 0, 2))], many(5)
    merge(held, group, batch, ridge=1e9)
    ht.prune(bare, ht.pruned(held))
    held, bare = (ov(ht.sites(m)["encoder", 0])["encoder", 0].matrix() for m in (held, bare))
    assert torch.allclose(held, bare, atol=1e-4)
    exact, nearly = merge(free, group, batch, ridge=0.0), merge(fresh("bert")[0], group, batch, ridge=1e-8)
    assert exact.relative_error[0] == pytest.approx(nearly.relative_error[0], rel=1e-4)


def test_padding_counts_for_nothing():
    model, _ = fresh("bert")
    batch, site = many(6, rows=8), ht.sites(model)["encoder", 1]
    together = moments(model, batch, {site: [0, 2]})["encoder", 1]
    alone = [
        {name: value[i : i + 1, : int(batch["attention_mask"][i].sum())] for name, value in batch.items()}
        for i in range(8)
    ]
    apart = moments(model, alone, {site: [0, 2]})["encoder", 1]
    assert together.count == apart.count == int(batch["attention_mask"].sum())
    assert torch.allclose(together.products, apart.products, rtol=1e-4, atol=1e-3)


def test_three_heads_and_what_is_left_of_the_numbers():
    model, batch = fresh("bert")[0], many(7)
    frame = merge(model, [(("encoder", 2, 0), ("encoder", 2, 1), ("encoder", 2, 3))], batch)
    sites = ht.sites(model)
    assert sites["encoder", 2].heads == 2
    assert sites["encoder", 2].original == tuple(sorted({frame.kept[0], 2}))
    assert set(frame.removed[0]) | {frame.kept[0]} == {0, 1, 3}
    again = merge(model, [(("encoder", 2, 0), ("encoder", 2, 1))], batch)
    assert sites.n_heads - 1 == ht.sites(model).n_heads
    assert len(ht.pruned(model)) == 3
    assert again.relative_error[0] < again.dropped[0]


def test_a_merged_model_is_saved_and_loaded_as_a_pruned_one():
    model, batch = fresh("marian")
    merge(model, [(("cross", 1, 0), ("cross", 1, 3)), (("encoder", 0, 1), ("encoder", 0, 2))], many(8, name="marian"))
    other, _ = fresh("marian")
    ht.replay(other, ht.pruned(model))
    other.load_state_dict(model.state_dict())
    assert torch.equal(run(other, batch), run(model, batch))


def test_the_fit_sees_the_model_as_it_was():
    """Two layers in one call are fitted on the same run, so the order of the groups does not matter."""
    first, second = fresh("bert")[0], fresh("bert")[0]
    groups, batch = [(("encoder", n, 0), ("encoder", n, 1)) for n in (0, 2)], many(9)
    merge(first, groups, batch)
    merge(second, groups[::-1], batch)
    assert torch.equal(run(first, batch), run(second, batch))


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_similarity_is_what_loops_find():
    model, batch = zoo_model("bert")
    frame = head_similarity(model, [batch], [("encoder", 1)])
    assert len(frame) == 6
    with ht.record(model, want="maps") as seen:
        run(model, batch)
    maps, real = seen["encoder", 1].maps, batch["attention_mask"].bool()
    row = frame[(frame["first"] == ("encoder", 1, 0)) & (frame["second"] == ("encoder", 1, 2))].iloc[0]
    distance = (maps[:, 0] - maps[:, 2]).abs().sum(-1)[real].mean() / 2
    assert row.map_distance == pytest.approx(distance.item(), rel=1e-5)


def test_twins_come_first_and_cost_nothing():
    model, _ = fresh("bert")
    site = ht.sites(model)["encoder", 1]
    make_twins(site, 0, 3)
    frame = head_similarity(model, [many(0)], ["encoder"], ridge=0.0)
    top = frame.iloc[0]
    assert (top["first"], top["second"]) == (("encoder", 1, 0), ("encoder", 1, 3))
    assert top.layer_error < 1e-9 < frame.layer_error[1]
    assert top.map_distance < 1e-6
    chosen = disjoint_pairs(frame, 6)
    heads = [head for pair in chosen for head in pair]
    assert len(set(heads)) == 12
    with pytest.raises(ValueError, match="got n=7; expected at most 6"):
        disjoint_pairs(frame, 7)


# --- refusals ---------------------------------------------------------------------------------------------------------

PAIR = [(("encoder", 0, 0), ("encoder", 0, 1))]


@pytest.mark.parametrize(
    ("groups", "kind", "words"),
    [
        ([], ValueError, "got no groups"),
        ([[("encoder", 0, 0)]], ValueError, "two or more heads of one layer"),
        ([(("encoder", 0, 0), ("encoder", 1, 0))], ValueError, "two or more heads of one layer"),
        ([(("encoder", 0, 0), ("encoder", 0, 0))], ValueError, "named twice"),
        ([*PAIR, (("encoder", 0, 1), ("encoder", 0, 2))], ValueError, "named twice"),
        ([(("encoder", 0, 0), ("encoder", 0, 4))], IndexError, r"heads 0\.\.3"),
        ([(("encoder", 7, 0), ("encoder", 7, 1))], KeyError, "encoder"),
    ],
)
def test_groups_that_cannot_be(groups, kind, words):
    model, batch = zoo_model("bert")
    with untouched(model), pytest.raises(kind, match=words):
        merge(model, groups, batch)


@pytest.mark.parametrize(
    ("name", "words"),
    [("llama", "share keys and values"), ("deepseek_v3", "latent"), ("bloom", "AttentionInterface"), ("gptj", "Atten")],
)
def test_models_that_cannot_be_merged(name, words):
    model, batch = zoo_model(name)
    key = next(iter(ht.sites(model))).key
    with untouched(model), pytest.raises(ValueError, match=words):
        merge(model, [((*key, 0), (*key, 1))], batch)


def test_nothing_is_changed_when_the_corpus_is_wrong_or_a_layer_would_go():
    model, batch = zoo_model("bert")
    with untouched(model):
        with pytest.raises(ValueError, match="got no batches"):
            merge(model, PAIR, [])
        with pytest.raises(TypeError, match="a batch is a dict"):
            merge(model, PAIR, ["the dog slept ."])
        with pytest.raises(ValueError, match="a number of at least 0, got -1"):
            merge(model, PAIR, batch, ridge=-1)
        with pytest.raises(ValueError, match="got no heads"):
            refit(model, {}, batch)
        with pytest.raises(ValueError, match=r"all heads of encoder 1 would go"):
            refit(model, {("encoder", 1): range(4)}, batch)


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


def test_what_cannot_be_cut_is_refused_before_the_corpus_is_run():
    for name, words in (("deepseek_v3", "from one latent vector"), ("bloom", "does not use transformers' Attention")):
        model, _ = fresh(name)

        def never(name=name):
            raise AssertionError(f"a batch of {name} was asked for")
            yield

        with untouched(model), pytest.raises(ValueError, match=words):
            refit(model, {("decoder", 0): [0]}, never())


def test_a_bias_that_two_layers_share_changes_in_one():
    model, batch = fresh("bert")
    site, other = list(ht.sites(model))[1:]
    other.out.bias = site.out.bias
    before = other.out.bias.detach().clone()
    refit(model, {site.key: [0]}, batch)
    assert torch.equal(ht.sites(model)[other.key].out.bias, before)
    assert not torch.equal(ht.sites(model)[site.key].out.bias, before)


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_the_frame_tells_what_weights_of_sixteen_bits_miss(name):
    """Few tokens, which a fit in double precision would reproduce entirely."""
    model, batch = fresh(name)
    model = model.to(torch.bfloat16)
    site = ht.sites(model).all[0]
    with ht.record(model, want=("maps", "z")) as seen:  # by the attention function that the fit sees
        run(model, batch)
    z = seen[site].z[batch["attention_mask"].bool()].double()
    old = output_matrix(site).detach().double().clone()
    frame = refit(model, {site.key: [0]}, batch, ridge=0)
    new = output_matrix(ht.sites(model)[site.key]).detach().double()
    target = torch.einsum("nhv,hvd->nd", z, old)
    rest = target - torch.einsum("nhv,hvd->nd", z[:, 1:], new)
    missed = (rest - rest.mean(0)).square().sum() / (target - target.mean(0)).square().sum()
    assert frame.relative_error[0] == pytest.approx(missed.item(), rel=1e-3)
    assert frame.relative_error[0] > 1e-7


def test_the_frame_tells_what_merged_values_of_sixteen_bits_miss():
    model, batch = fresh("bert")[0].to(torch.bfloat16), many(3, rows=1)
    frame = merge(model, [(("encoder", 0, 0), ("encoder", 0, 1))], batch, ridge=0)
    exact, _ = fresh("bert")
    exact = exact.to(torch.bfloat16).double()
    frame_exact = merge(exact, [(("encoder", 0, 0), ("encoder", 0, 1))], batch, ridge=0)
    assert frame.relative_error[0] > frame_exact.relative_error[0] + 1e-8
