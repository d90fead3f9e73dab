"""The gradient importance against slow and plain ways to get it, on many architectures."""

import copy

import pytest
import torch
from torch.nn import functional as F

import headtools as ht
from headtools.heads.intervals import linearised_direction, linearised_ratio
from headtools.heads.scores import HeadScores
from headtools.importance.gradient import gradient
from headtools.importance.loss import label_loss

from ..heads.zoo import BUILDERS, zoo_model


def slopes_of(model, batches, loss=None, **more):
    """dL/dgate of every example and head."""
    return gradient(model, batches, loss, signed=True, **more).rows


def labelled(name):
    """A batch with labels that does not count padding, and with a decoder input of three lengths."""
    model, batch = zoo_model(name)
    generator = torch.Generator().manual_seed(4)
    kind = BUILDERS[name][1]
    if kind == "image":
        return model, batch | {"labels": torch.tensor([0, 3, 1])}
    shape = batch["decoder_input_ids"].shape if kind == "seq2seq" else batch["input_ids"].shape
    labels = torch.randint(3, 90, shape, generator=generator)
    if kind == "seq2seq":
        for row, length in enumerate((5, 3, 2)):
            labels[row, length:] = -100
    else:
        labels[batch["attention_mask"] == 0] = -100
    return model, batch | {"labels": labels}


def singles(batch):
    """The same examples one by one, without padding."""
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        if "attention_mask" in one:
            length = int(one["attention_mask"].sum())
            for key in ("input_ids", "attention_mask"):
                one[key] = one[key][:, :length]
        if one["labels"].dim() == 2:
            length = int((one["labels"] != -100).sum())
            for key in {"labels", "decoder_input_ids"} & one.keys():
                one[key] = one[key][:, :length]
        yield one


def close(left, right, tolerance=1e-5):
    scale = max(value.abs().max() for value in right.values())
    assert left.keys() == right.keys()
    for key in left:
        assert (left[key] - right[key]).abs().max() <= tolerance * scale, key


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_first_token_after_padding_on_the_left_is_predicted_by_nothing(name):
    model, batch = zoo_model(name, "left")
    mask = batch["attention_mask"]
    batch = batch | {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    outputs = model(**batch)
    each = label_loss(model, outputs, batch | {"labels": batch["input_ids"].masked_fill(mask == 0, -100)})
    for row, loss in enumerate(each.tolist()):
        words = batch["input_ids"][row : row + 1, mask[row].bool()]
        own = model(input_ids=words, labels=words).loss.item()
        assert loss == pytest.approx(own, rel=1e-4)
    one = {"labels": batch["input_ids"][:, -2:], "attention_mask": torch.tensor([[1, 1], [0, 1], [1, 1]])}
    with pytest.raises(ValueError, match=r"examples \[1\] of a batch have no label"):
        label_loss(model, model(one["labels"]), one)


def test_importances_per_batch_are_means_over_batches():
    model, batch = labelled("marian")
    slopes = slopes_of(model, batch)
    two = [{key: value[rows] for key, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    close(
        gradient(model, two, per="batch").values,
        {key: (slope[0].abs() + slope[1:].mean(0).abs()) / 2 for key, slope in slopes.items()},
    )
    assert gradient(model, batch, per="batch").low is None
    assert gradient(model, two, per="batch").notes == {"interval": "none: 2 examples came, 5 are needed"}
    assert gradient(model, two * 3, per="batch").low is not None


def test_layers_are_normalised_by_their_length():
    model, batch = labelled("bert")
    plain, scaled = gradient(model, batch), gradient(model, [batch, batch], normalise="layer")
    for key, value in plain.values.items():
        assert torch.allclose(scaled.values[key], value / (value**2).sum().sqrt(), rtol=1e-5)
        assert (scaled.low[key] <= scaled.values[key]).all()
        assert (scaled.values[key] <= scaled.high[key]).all()
    assert (plain.name, scaled.name) == ("gradient", "gradient, layer-normalised")


def test_nothing_below_the_first_site_is_differentiated():
    model, batch = copy.deepcopy(labelled("bert")[0]), labelled("bert")[1]
    needed = {}

    def keep(name):
        def hook(_module, _inputs, out):
            needed[name] = out.requires_grad

        return hook

    for number, layer in enumerate(model.bert.encoder.layer):
        layer.attention.self.query.register_forward_hook(keep(("query", number)))
        layer.attention.output.dense.register_forward_hook(keep(("out", number)))
    gradient(model, batch, sites=[("encoder", 1)])
    below = [("query", 0), ("out", 0), ("query", 1)]
    assert needed == dict.fromkeys(below, False) | dict.fromkeys([("out", 1), ("query", 2), ("out", 2)], True)


def test_parameters_of_the_loss_get_no_gradient():
    model, batch = zoo_model("bert")
    head = torch.nn.Linear(96, 1)
    gradient(model, batch, lambda outputs, _batch: head(outputs.logits).mean((1, 2)))
    assert head.weight.grad is None


def test_heads_that_are_off_score_nothing():
    model, batch = labelled("gpt2")
    with ht.ablate(model, {("decoder", 1): [2]}):
        scores = gradient(model, batch)
    assert scores["decoder", 1, 2] == 0
    assert (scores.flat() == 0).sum() == 1
    assert scores["decoder", 2, 0] != gradient(model, batch)["decoder", 2, 0]


def test_a_layer_whose_heads_are_all_cut_is_left_out():
    model, batch = copy.deepcopy(labelled("bert")[0]), labelled("bert")[1]
    ht.prune(model, {("encoder", 1): [0, 1, 2, 3], ("encoder", 2): [1]})
    scores = gradient(model, batch)
    assert {key: len(value) for key, value in scores.values.items()} == {("encoder", 0): 4, ("encoder", 2): 3}


def test_a_site_the_loss_does_not_see_is_refused():
    model, batch = zoo_model("clip")

    def text(outputs, _batch):
        return outputs.text_embeds.sum(-1)

    with pytest.raises(ValueError, match=r"does not depend on vision_model encoder 0"):
        gradient(model, batch, text)
    assert ("text_model", "decoder", 0) in gradient(model, batch, text, sites=["text_model"]).values


def test_intervals_of_ratios_and_norms_follow_a_full_bootstrap():
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(3, 20, (300,), generator=generator)
    sums = torch.rand(300, 4, generator=generator) * counts[:, None] * torch.tensor([1.0, 2.0, 0.5, 3.0])
    draws = torch.randint(300, (2000, 300), generator=generator)
    ratios = sums[draws].sum(1) / counts[draws].sum(1)[:, None]
    cases = [
        (linearised_ratio(sums, counts), sums.sum(0) / counts.sum(), ratios),
        (linearised_direction(sums), F.normalize(sums.mean(0), dim=0), F.normalize(sums[draws].mean(1), dim=1)),
    ]
    for rows, value, drawn in cases:
        made = HeadScores.from_rows({("encoder", 0): rows}, "test")
        assert torch.allclose(made.values["encoder", 0], value, rtol=1e-5)
        width = drawn.quantile(0.975, 0) - drawn.quantile(0.025, 0)
        assert torch.allclose(made.low["encoder", 0], drawn.quantile(0.025, 0), rtol=0, atol=0.1 * width.max())
        assert torch.allclose(made.high["encoder", 0] - made.low["encoder", 0], width, rtol=0.15)


def test_bounds_stop_where_the_score_does():
    rows = torch.tensor([[0.0], [0.0], [0.0], [0.0], [9.0]])
    made = HeadScores.from_rows({("encoder", 0): rows - 1}, "test", minimum=0.0, maximum=1.0)
    assert (made.low["encoder", 0].item(), made.high["encoder", 0].item()) == (0.0, 1.0)
    assert torch.equal(linearised_direction(torch.zeros(3, 2)), torch.zeros(3, 2))
