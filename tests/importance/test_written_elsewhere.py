"""Models written by hand: which kind their attention is, and which labels their loss takes."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headtools as ht
from headtools.importance.labels import label
from headtools.importance.loss import label_loss

IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]])
MOVED = torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], 1)


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.num_heads, self.head_dim, self.sees_before = 2, 4, causal
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=self.sees_before)
        return self.out_proj(z.transpose(1, 2).flatten(-2))


class Model(nn.Module):
    """Two layers that say nothing of what they are."""

    def __init__(self, causal=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.blocks = nn.ModuleList(Attention(causal) for _ in range(2))

    def forward(self, input_ids, **_):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = x + block(x)
        return SimpleNamespace(logits=self.head(x))


def by_hand(model, ids, labels):
    """Mean cross-entropy of the labels at their own places."""
    logits = model(ids).logits
    return torch.stack([F.cross_entropy(row, wanted, ignore_index=-100) for row, wanted in zip(logits, labels)])  # noqa: B905


def loss_of(model, batch, form=None):
    with torch.no_grad():
        return label_loss(model, model(**batch), batch, form)


def said(model, causal):
    model.is_causal = causal
    return model


def test_a_kind_that_is_a_guess_is_told():
    model = Model().eval()
    sites = ht.sites(model)
    assert [site.guessed for site in sites] == [True, True]
    assert "encoder 0 and others: its kind is a guess" in repr(sites)
    assert "model.is_causal = True" in repr(sites)
    for causal, kind in ((True, "decoder"), (False, "encoder")):
        settled = ht.sites(said(model, causal))
        assert settled.kinds == {kind: 4}
        assert not settled.guessed
        assert "guess" not in repr(settled)


def test_labels_that_repeat_the_input_of_a_model_that_says_nothing():
    """The loss was that of copying the word, and not of the next one, without a word."""
    model, batch = Model().eval(), {"input_ids": IDS, "labels": IDS}
    with pytest.raises(ValueError, match=r'loss="aligned" or loss="causal".*model\.is_causal = True'):
        loss_of(model, batch)
    for use in (lambda: ht.gradient(model, batch), lambda: ht.ablation(model, batch, progress=False)):
        with pytest.raises(ValueError, match=r"do not see a later one, so it is 'decoder'.*model\.is_causal = True"):
            use()  # it was tried first
    shifted, aligned = by_hand(model, IDS, MOVED), by_hand(model, IDS, IDS)
    assert torch.allclose(loss_of(said(model, True), batch), shifted)
    assert torch.allclose(loss_of(said(model, False), batch), aligned)
    assert torch.allclose(loss_of(model, batch, "causal"), shifted)
    assert torch.allclose(loss_of(model, batch, "aligned"), aligned)


@pytest.mark.parametrize("causal", [None, True, False])
def test_labels_that_are_moved_already(causal):
    model, batch = Model().eval(), {"input_ids": IDS, "labels": MOVED}
    if causal is not None:
        model.is_causal = causal
    assert torch.allclose(loss_of(model, batch), by_hand(model, IDS, MOVED))


def test_masked_words_of_a_model_that_says_nothing():
    masked = IDS.clone()
    masked[:, 2] = 8
    labels = torch.full_like(IDS, -100)
    labels[:, 2] = IDS[:, 2]
    model = Model(causal=False).eval()
    assert torch.allclose(loss_of(model, {"input_ids": masked, "labels": labels}), by_hand(model, masked, labels))


def test_labels_of_a_causal_model_that_are_other_words():
    model = said(Model().eval(), True)
    batch = {"input_ids": IDS, "labels": IDS.flip(1) % 3}
    with pytest.raises(ValueError, match=r'loss="aligned" or loss="causal"'):
        loss_of(model, batch)
    with pytest.raises(ValueError, match=r'loss="aligned" or loss="causal"'):
        loss_of(model, {"input_ids": torch.stack([IDS, IDS], 2)[..., 0], "labels": IDS.flip(1)})


def test_every_measure_takes_a_form():
    model, batch = said(Model().eval(), True), {"input_ids": IDS, "labels": IDS}
    aligned = lambda outputs, batch: F.cross_entropy(  # noqa: E731
        outputs.logits.transpose(1, 2), batch["labels"], reduction="none"
    ).mean(1)
    assert torch.allclose(ht.gradient(model, batch, "aligned").flat(), ht.gradient(model, batch, aligned).flat())
    assert torch.allclose(ht.gradient(model, batch, "causal").flat(), ht.gradient(model, batch).flat())
    for form, other in (("aligned", aligned), ("causal", None)):
        a, b = (ht.ablation(model, batch, loss, progress=False).flat() for loss in (form, other))
        assert torch.allclose(a, b)
    fit = ht.fit_gates(model, batch, 1.0, loss="causal", steps=1, weights=None, progress=False)
    assert fit.losses.loss[0] > 0


def test_sentences_are_not_labelled_for_a_model_that_says_nothing():
    class Speaking(Model):
        def get_output_embeddings(self):
            return self.head

    class Tokenizer:
        pad_token, model_max_length = "0", 99

        def __call__(self, texts, **_):
            return {"input_ids": IDS[: len(texts)], "attention_mask": torch.ones_like(IDS[: len(texts)])}

    model = Speaking().eval()
    with pytest.raises(ValueError, match=r"is a guess.*model\.is_causal = True"):
        label(model, Tokenizer(), [["a"], ["b"]])
    batch = label(said(model, True), Tokenizer(), [["a"], ["b"]])[0]
    assert torch.equal(batch["labels"], IDS)
