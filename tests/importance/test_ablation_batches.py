"""Batches of several sizes and forms, one after the other."""

import pytest
import torch
from torch import nn

from headtools.importance._leave_one_out import LeaveOneOut
from headtools.importance.loss import label_loss

from ..heads.zoo import zoo_model
from .test_ablation import Layers, by_loop, close, labelled, quietly, runs, scored  # noqa: F401  (runs is a fixture)


class Weighted(nn.Module):
    """Home-made layers that also take numbers which all examples share, and use them in one place or another."""

    def __init__(self, use):
        super().__init__()
        self.inner, self.use = Layers("nothing"), use

    def forward(self, inputs_embeds, w=None, more=None):
        x = self.inner(inputs_embeds * w.sum() if w is not None and self.use == "first" else inputs_embeds)
        return x * w.sum() if w is not None and self.use == "last" else x


def summed(outputs, batch):
    each = outputs.flatten(1).sin().sum(1)
    if batch.get("more") is not None:
        each = each * (batch["more"]["scale"][0].sum() if isinstance(batch["more"], dict) else batch["more"].norm())
    return each


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def batches(sizes, **more):
    return [{"inputs_embeds": draw(size, 5, 8, seed=size), **more} for size in sizes]


@pytest.mark.parametrize("use", ["first", "last"])
@pytest.mark.parametrize("sizes", [(3, 5), (5, 3), (5, 5), (1, 5), (3, 1, 5, 2)])
def test_a_shared_tensor_with_as_many_numbers_as_a_batch_has_rows(use, sizes, runs):  # noqa: F811
    model = Weighted(use).eval()
    several = batches(sizes, w=draw(5).abs())
    close(quietly(model, several, summed), by_loop(model, several, summed))
    assert runs == [True] * len(sizes)


@pytest.mark.parametrize("form", [lambda t: t, lambda t: {"scale": [t]}])
def test_a_tensor_that_only_the_loss_reads(form, runs):  # noqa: F811
    model = Weighted("nowhere").eval()
    several = batches((3, 5, 4), more=form(draw(5)))
    close(quietly(model, several, summed), by_loop(model, several, summed))
    assert runs == [True] * 3


def test_what_makes_no_difference_in_the_first_batch_may_make_one_later():
    """A shared tensor of zeros can be copied or not; that of the next batch cannot."""
    model = Weighted("first").eval()
    several = [{"inputs_embeds": draw(5, 5, 8, seed=i), "w": draw(5) * i} for i in range(3)]
    close(quietly(model, several, summed), by_loop(model, several, summed))


def test_a_loss_with_labels_of_its_own_that_are_alike_at_first():
    model, batch = zoo_model("bert")

    def loss(outputs, batch):  # of each batch targets of its own, more than it has rows
        target = batch["labels"][0, 0] * torch.arange(12) % 5
        chosen = target[: len(outputs.logits), None]
        return -outputs.logits[:, 0].log_softmax(-1).gather(1, chosen)[:, 0]

    several = [batch | {"labels": torch.full((3, 7), number)} for number in (0, 1, 2)]
    found = quietly(Labelled(model), several, loss)
    close(found, by_loop(Labelled(model), several, loss))


class Labelled(nn.Module):
    """A model that takes labels and does nothing with them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, labels=None, **inputs):
        return self.model(**inputs)


@pytest.mark.parametrize("name", ["t5", "marian", "bert", "gpt2", "llama"])
def test_batches_with_and_without_padding(name, runs):  # noqa: F811
    """T5 hands on a position bias for all examples, which has one row for each as soon as there is padding."""
    model, batch = zoo_model(name)
    plain = {key: value for key, value in batch.items() if key != "attention_mask"}
    full = batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}
    one = {key: value[1:2] for key, value in batch.items()}
    for several in ([plain, batch], [full, batch, one], [one, full, batch], [batch, plain]):
        close(quietly(model, several, scored), by_loop(model, several, scored))
    assert all(runs)


def test_masks_and_positions_of_all_examples_at_once(runs):  # noqa: F811
    model, batch = zoo_model("llama")
    ids = batch["input_ids"]
    causal = torch.ones(7, 7).tril().bool()[None, None]
    places = torch.arange(7)[None]
    several = [
        {"input_ids": ids[:1], "position_ids": places, "attention_mask": causal},
        {"input_ids": ids, "position_ids": places, "attention_mask": causal},
        {"input_ids": ids[:2], "position_ids": places.repeat(2, 1), "attention_mask": causal.repeat(2, 1, 1, 1)},
    ]
    close(quietly(model, several, scored), by_loop(model, several, scored))
    assert runs == [True] * 3


# ---- copies of a small batch that share a run ------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch):
    """How many copies of each batch shared a run."""
    counted, plain = [], LeaveOneOut.__init__

    def watched(self, *args):
        plain(self, *args)
        counted.append(self.copies)

    monkeypatch.setattr(LeaveOneOut, "__init__", watched)
    return counted


def check_label_loss(model, batches):
    close(quietly(model, batches), by_loop(model, batches, lambda outputs, batch: label_loss(model, outputs, batch)))


@pytest.mark.parametrize("name", ["bert", "t5", "llama"])
def test_copies_of_a_small_batch_share_a_run(name, copies):
    model, batch = labelled(name)
    check_label_loss(model, batch)
    assert copies == [512 // batch["input_ids"].numel()]


def test_the_tokens_of_a_picture_are_counted_not_its_channels(copies):
    model, batch = labelled("vit")
    pictures = {key: value[:2] for key, value in batch.items()}
    check_label_loss(model, pictures)
    patches = (16 // 4) ** 2 + 1
    assert copies == [512 // (2 * patches)]


def test_a_large_batch_is_not_copied(copies):
    model, batch = labelled("gpt2")
    large = {key: value.repeat(13, 1) for key, value in batch.items()}
    check_label_loss(model, [large, batch])
    assert copies == [1, 1]  # what the first batch could not try is not done later


def test_a_batch_with_as_many_rows_as_tokens_is_not_copied(copies):
    model, batch = labelled("gpt2")
    square = {key: value.repeat(3, 1)[:7] for key, value in batch.items()}
    assert square["input_ids"].shape == (7, 7)
    check_label_loss(model, square)
    assert copies == [1]


def test_other_losses_are_of_the_batch_as_it_is(copies):
    model, batch = labelled("bert")
    seen = set()

    def loss(outputs, given):
        seen.add(len(given["labels"]))
        return label_loss(model, outputs, given)

    close(quietly(model, batch, loss), quietly(model, batch))
    assert seen == {len(batch["labels"])}
    assert copies[0] == 1 < copies[1]


class Crowded(nn.Module):
    """A model whose outputs depend on how many texts, or which other texts, are in the batch."""

    def __init__(self, model, crowd):
        super().__init__()
        self.model, self.crowd, self.config = model, crowd, model.config

    def forward(self, **inputs):
        outputs = self.model(**inputs)
        outputs.logits = outputs.logits * self.crowd(outputs.logits)
        return outputs


@pytest.mark.parametrize(
    "crowd", [lambda logits: 1 + 1 / len(logits), lambda logits: 1 + logits[-1].mean() * (len(logits) > 3)]
)
def test_a_model_that_notices_other_copies_gets_none(crowd, copies, runs):  # noqa: F811
    model, batch = labelled("bert")
    assert len(batch["labels"]) <= 3
    check_label_loss(Crowded(model, crowd).eval(), batch)
    assert copies == [1]
    assert runs == [True]


@pytest.mark.parametrize("by", ["mean", "resample", "uniform"])
def test_each_copy_has_its_own_replacement(by, copies):
    model, batch = labelled("marian")
    own = by_loop(model, batch, lambda outputs, given: label_loss(model, outputs, given), by=by, reference=batch)
    close(quietly(model, batch, replacement=by, reference=batch), own)
    assert copies[0] > 1
