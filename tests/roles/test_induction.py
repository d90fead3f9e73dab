"""Scores of heads that look back: by hand, against loops, and on models of several families."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
)

import headtools as ht
from headtools.organism.toy_decoder import ToyDecoder
from headtools.roles import induction as looking

GPT2 = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
LLAMA = LlamaConfig(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=16,
    max_position_embeddings=64,
    pad_token_id=0,
)


def decoder(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)  # so that heads differ
    return model


def random_maps(batch, heads, length, seed=0):
    scores = 3 * torch.randn(batch, heads, length, length, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~torch.ones(length, length).tril().bool(), -torch.inf).softmax(-1)


def by_loop(maps, targets):
    """Mean over queries that have targets(t) of the attention on them, one sequence and head at a time."""
    out = torch.zeros(maps.shape[:2])
    for b in range(maps.shape[0]):
        for h in range(maps.shape[1]):
            rows = [[maps[b, h, t, j].item() for j in targets(b, t)] for t in range(maps.shape[2])]
            rows = [sum(row) for row in rows if row]
            out[b, h] = sum(rows) / len(rows)
    return out


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.integers(2, 4), st.integers(0, 99))
def test_scores_are_those_of_plain_loops(length, repeats, seed):
    ids = looking.segments(2, length, repeats, range(9), seed=seed)
    x, maps = ids.tolist(), random_maps(2, 3, ids.shape[1], seed)
    earlier = {b: [[j for j in range(t) if x[b][j] == x[b][t]] for t in range(len(x[b]))] for b in range(2)}
    torch.testing.assert_close(looking.previous_token(maps), by_loop(maps, lambda b, t: [t - 1] if t else []))
    torch.testing.assert_close(looking.duplicate_token(maps, ids), by_loop(maps, lambda b, t: earlier[b][t]))
    followed = by_loop(maps, lambda b, t: [j + 1 for j in earlier[b][t]])
    torch.testing.assert_close(looking.prefix_matching(maps, ids), followed)
    twice = maps[:, :, : 2 * length, : 2 * length]
    one_place = by_loop(twice, lambda b, t: [t - length + 1] if t >= length else [])
    torch.testing.assert_close(looking.induction(twice, length), one_place)


def test_on_a_segment_told_four_times_they_do_not():
    """A head that shares its attention over all tokens that may follow is perfect for Olsson et al.: they add up."""
    ids = looking.segments(1, 3, 4, range(20))
    followed = (ids[:, :, None] == ids[:, None, :]).tril(-1).roll(1, -1).float()
    none = followed.sum(-1, keepdim=True) == 0
    maps = torch.where(none, torch.eye(12), followed / followed.sum(-1, keepdim=True).clamp_min(1))[:, None]
    assert looking.prefix_matching(maps, ids).item() == pytest.approx(1)
    assert looking.induction(maps, 3).item() == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)  # only the latest copy counts
    assert looking.duplicate_token(maps, ids).item() == 0


def test_segments_repeat_and_hold_no_token_twice():
    ids = looking.segments(5, 4, 3, range(10, 20), seed=3)
    assert ids.shape == (5, 12)
    first = ids[:, :4]
    assert torch.equal(ids[:, 4:8], first)
    assert torch.equal(ids[:, 8:], first)
    assert all(len(set(row)) == 4 and min(row) >= 10 for row in first.tolist())
    assert torch.equal(ids, looking.segments(5, 4, 3, range(10, 20), seed=3))
    assert not torch.equal(ids, looking.segments(5, 4, 3, range(10, 20), seed=4))


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_scores_of_a_model_are_those_of_its_own_maps(config):
    model = decoder(config)
    frame = looking.induction_scores(model, n=5, length=6, repeats=3, seed=2, batch_size=2)
    assert len(frame) == 2 * 4 * 5
    model.set_attn_implementation("eager")
    twice, many = (looking.segments(5, 6, n, looking.ordinary_tokens(model), seed=2) for n in (2, 3))
    with torch.no_grad():
        maps, more = (torch.stack(model(ids, output_attentions=True).attentions) for ids in (twice, many))
    want = {
        "previous-token": looking.previous_token(maps.flatten(0, 1)),
        "duplicate-token": looking.duplicate_token(maps.flatten(0, 1), twice.repeat(2, 1)),
        looking.INDUCTION: looking.induction(maps.flatten(0, 1), 6),
        looking.PREFIX: looking.prefix_matching(more.flatten(0, 1), many.repeat(2, 1)),
    }
    for role, values in want.items():
        found = torch.tensor(frame[frame.role == role].score.to_numpy()).view(2, 4)
        torch.testing.assert_close(found.float(), values.view(2, 5, 4).mean(1), atol=1e-5, rtol=0)
    assert ((frame.low <= frame.score) & (frame.score <= frame.high)).all()
    assert (frame.n == 5).all()


def test_chance_is_what_an_even_head_scores():
    model = decoder(GPT2)
    for name, weight in model.named_parameters():
        if "c_attn" in name:
            torch.nn.init.zeros_(weight)  # queries and keys of zero: even attention
    frame = looking.induction_scores(model, n=5, length=5)
    frame = frame[frame.role != looking.COPYING].reset_index(drop=True)
    torch.testing.assert_close(torch.tensor(frame.score), torch.tensor(frame.chance), atol=1e-6, rtol=0)
    chance = frame.set_index("role").chance.groupby(level=0).first()
    assert chance[looking.INDUCTION] == pytest.approx(sum(1 / (t + 1) for t in range(5, 10)) / 5)
    assert chance["duplicate-token"] == pytest.approx(chance[looking.INDUCTION])
    assert chance["previous-token"] == pytest.approx(sum(1 / (t + 1) for t in range(1, 10)) / 9)
    copies = [t // 5 / (t + 1) for t in range(5, 20)]
    assert chance[looking.PREFIX] == pytest.approx(sum(copies) / 15)


def copier(sign):
    """A ToyDecoder whose first head writes what it reads, up to the sign, into the unembedding of the same symbol."""
    model = ToyDecoder(layers=1, heads=1, width=16, symbols=16, length=48)
    with torch.no_grad():
        model.symbol.weight.copy_(torch.eye(16))
        model.unembed.weight.copy_(torch.eye(16))
        model.layers[0].v_proj.weight.copy_(torch.eye(16))
        model.layers[0].out_proj.weight.copy_(sign * torch.eye(16))
    return model


def test_copying_of_a_copier_is_one_and_of_its_opposite_minus_one():
    assert looking.copying(copier(1), n=5, length=8).score.item() == pytest.approx(1)
    assert looking.copying(copier(-1), n=5, length=8).score.item() == pytest.approx(-1)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_copying_is_that_of_plain_loops(config):
    model = decoder(config)
    frame = looking.copying(model, n=5, length=5, batch_size=2)
    assert frame.chance.eq(2 / 5 - 1).all()
    ids = looking.segments(5, 5, 2, looking.ordinary_tokens(model))[:, :5]
    with torch.no_grad(), ht.record(model, want="v") as r:
        model(ids)
    for site in ht.sites(model):
        for head in range(4):
            shares = []
            for b in range(5):
                for place in range(5):
                    value = r[site].v[b, head * site.kv_heads // 4, place]
                    logits = model.lm_head.weight[ids[b]] @ (value @ site.w_o[head])
                    raised = (logits - logits.mean()).clamp_min(0)
                    shares.append((raised[place] / raised.sum()).item())
            row = frame[(frame.layer == site.layer) & (frame["head"] == head)]
            assert row.score.item() == pytest.approx(2 * sum(shares) / 25 - 1, abs=1e-5)


def test_special_tokens_are_not_drawn_by_default():
    seen = []
    model = decoder(GPT2)
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    looking.induction_scores(model, n=20, length=20, repeats=3)
    drawn = set(torch.cat([ids.flatten() for ids in seen]).tolist())
    assert not drawn & {1, 2}
    assert 0 in drawn  # GPT-2 has no padding token
