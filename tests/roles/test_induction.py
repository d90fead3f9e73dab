"""Scores of heads that look back: by hand, against loops, and on models of several families."""

import pytest
import torch
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


def test_segments_repeat_and_hold_no_token_twice():
    ids = looking.segments(5, 4, 3, range(10, 20), seed=3)
    assert ids.shape == (5, 12)
    first = ids[:, :4]
    assert torch.equal(ids[:, 4:8], first)
    assert torch.equal(ids[:, 8:], first)
    assert all(len(set(row)) == 4 and min(row) >= 10 for row in first.tolist())
    assert torch.equal(ids, looking.segments(5, 4, 3, range(10, 20), seed=3))
    assert not torch.equal(ids, looking.segments(5, 4, 3, range(10, 20), seed=4))


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
