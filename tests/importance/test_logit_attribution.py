"""Direct logit attribution: parts that add up, heads as a run with a frozen scale has them, models that are refused."""

import pytest
import torch

import headtools as ht
from headtools.organism.toy_decoder import ToyDecoder

from ..heads.zoo import zoo_model

SUMS = ("gpt2", "llama", "qwen3", "gpt_neox", "phi3", "gpt_oss", "opt")


@pytest.mark.parametrize("name", SUMS)
def test_the_parts_add_up_to_the_models_own_logit(name):
    model, batch = zoo_model(name)
    with torch.no_grad():
        logits = model(**batch).logits
    last = batch["attention_mask"].sum(1) - 1
    rows = torch.arange(len(last))
    tokens = torch.arange(3, 3 + len(last))
    found = ht.direct_logit_attribution(model, batch, tokens)
    assert torch.allclose(found.logit, logits[rows, last, tokens], atol=1e-4)
    total = sum(part.sum(1) for part in found.heads.values()) + found.rest
    assert torch.allclose(total, found.logit, atol=1e-4)


def test_an_attention_only_model_that_adds_in_its_own_forward():
    """The toy decoder adds what its layers write itself, so no layer gives the stream that the final norm reads."""
    model = ToyDecoder(layers=3, seed=1)
    ids = torch.randint(64, (4, 12), generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([1, 2, 3, 4])
    found = ht.direct_logit_attribution(model, {"input_ids": ids}, tokens)
    with torch.no_grad():
        logits = model(ids)[:, -1]
    assert torch.allclose(found.logit, logits[torch.arange(4), tokens], atol=1e-4)
    norm, taken = model.last_norm, []
    hook = norm.register_forward_pre_hook(lambda _, given: taken.append(given[0][:, -1]))
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(ids)
    hook.remove()
    scale = (taken[0].var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    for site in ht.sites(model):
        written = torch.einsum("bhv,hvd->bhd", seen[site].z[:, -1], site.w_o)
        centred = (written - written.mean(-1, keepdim=True)) * norm.weight
        by_hand = torch.einsum("bhd,bd->bh", centred, model.unembed.weight[tokens]) / scale
        assert torch.allclose(by_hand, found.heads[site.key], atol=1e-5)


def test_a_stream_that_is_changed_before_the_final_norm_is_refused():
    model = ToyDecoder()
    model.last_norm.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    with pytest.raises(ValueError, match="does not read the last layer's output"):
        ht.direct_logit_attribution(model, {"input_ids": torch.tensor([[1, 2, 3]])}, [4])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_head_of_the_last_layer_without_its_path_through_the_feed_forward(name):
    """Only the direct path of a head changes: its output is taken off the stream in front of the final norm."""
    model, batch = zoo_model(name)
    site = list(ht.sites(model))[-1]
    final = model.transformer.ln_f if name == "gpt2" else model.model.norm
    tokens, other = torch.tensor([5] * len(batch["input_ids"])), torch.tensor([9] * len(batch["input_ids"]))
    found, less = (ht.direct_logit_attribution(model, batch, of) for of in (tokens, other))
    direct = found.heads[site.key] - less.heads[site.key]
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(**batch)
    written = ht.contributions(site, seen[site].z)
    head, taken = 1, []

    def scaled(_module, given):
        x = given[0]
        taken.append(x)
        kept = x - written[..., head, :]
        if name == "gpt2":
            centred = x - x.mean(-1, keepdim=True)
            scale = (centred.pow(2).mean(-1, keepdim=True) + final.eps).sqrt()
            return (kept - kept.mean(-1, keepdim=True)) / scale * final.weight + final.bias
        scale = (x.pow(2).mean(-1, keepdim=True) + final.variance_epsilon).sqrt()
        return kept / scale * final.weight

    handle = final.register_forward_hook(lambda module, given, _output: scaled(module, given))
    try:
        with torch.no_grad():
            logits = model(**batch).logits
    finally:
        handle.remove()
    last = batch["attention_mask"].sum(1) - 1
    rows = torch.arange(len(last))
    without = logits[rows, last, tokens] - logits[rows, last, other]
    assert torch.allclose(found.logit - less.logit - without, direct[:, head], atol=1e-4)


def test_a_side_of_padding():
    model, batch = zoo_model("llama", "left")
    texts = [ids[mask.bool()][None] for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    together = ht.direct_logit_attribution(model, batch, [4] * len(texts))
    for row, ids in enumerate(texts):
        alone = ht.direct_logit_attribution(model, {"input_ids": ids}, [4])
        assert torch.allclose(alone.heads["decoder", 1][0], together.heads["decoder", 1][row], atol=1e-4)
    assert len(together.scores) == 18


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert_decoder", "does not"),
        ("gemma2", "norms what its attention writes"),
        ("bert", "encoder attention"),
        ("marian", "encoder and"),
    ],
)
def test_streams_that_are_no_sum_are_refused(name, message):
    model, batch = zoo_model(name)
    with pytest.raises(ValueError, match=message):
        ht.direct_logit_attribution(model, batch, [4] * len(next(iter(batch.values()))))


def test_tokens_of_another_number_are_refused():
    model, batch = zoo_model("llama")
    with pytest.raises(ValueError, match="expected one id for each"):
        ht.direct_logit_attribution(model, batch, [4])
