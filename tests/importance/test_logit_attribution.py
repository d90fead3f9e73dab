"""Direct logit attribution: parts that add up, heads as a run with a frozen scale has them, models that are refused."""

import pytest
import torch

import headtools as ht
from headtools.organism.toy_decoder import ToyDecoder

from ..heads.zoo import zoo_model


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
    with pytest.raises(ValueError, match="does not add what its attention writes"):
        ht.direct_logit_attribution(model, {"input_ids": torch.tensor([[1, 2, 3]])}, [4])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_of_padding(side):
    model, batch = zoo_model("llama", side)
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
        ("gemma2", "does not add"),
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
