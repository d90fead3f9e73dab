"""The loss of each example, by its formula; which numbers count; and what is said of other forms."""

from types import SimpleNamespace as Outputs

import pytest
import torch
import transformers as tf
from torch import nn

from headtools.heads._tokens import is_encoder_decoder
from headtools.importance._inputs import each_batch, select_sites
from headtools.importance.loss import each_loss, label_loss, labels_only_loss, predicts_next_token
from headtools.importance.relevance import find_targets

from ..heads.zoo import PADDED, TEXT_ONLY, zoo_model

TINY = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9, "bos_token_id": None, "eos_token_id": None}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(logits, labels, shift, mask=None):
    """Means over each example's own counted tokens."""
    found = []
    for row in range(len(labels)):
        each = []
        for place in range(labels.shape[1]):
            source = place - 1 if shift else place
            if labels[row, place] == -100 or source < 0 or (mask is not None and not mask[row, source]):
                continue
            each.append(-logits[row, source].log_softmax(-1)[labels[row, place]])
        found.append(sum(each) / len(each))
    return torch.stack(found)


LABELS = torch.tensor([[1, 2, -100, 3], [-100, 4, 0, -100]])


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian"])
def test_the_loss_of_a_text(name):
    model, _ = zoo_model(name)
    logits = draw(2, 4, 9)
    assert predicts_next_token(model) == (name == "gpt2")
    assert is_encoder_decoder(model) == (name == "marian")
    found = label_loss(model, Outputs(logits=logits), {"labels": LABELS})
    assert torch.allclose(found, by_hand(logits, LABELS, name == "gpt2"))
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    masked = label_loss(model, Outputs(logits=logits), {"labels": LABELS, "attention_mask": mask})
    assert torch.allclose(masked, by_hand(logits, LABELS, name == "gpt2", mask if name == "gpt2" else None))
    other = {"labels": LABELS, "attention_mask": mask[:, :3]}  # of another length: that of a prefix, say
    assert torch.allclose(label_loss(model, Outputs(logits=logits), other), found)


def test_tokens_that_are_classified_stand_where_they_are():
    judge = tf.GPT2ForTokenClassification(tf.GPT2Config(**TINY))
    assert not predicts_next_token(judge)
    logits = draw(2, 4, 9)
    assert torch.allclose(label_loss(judge, Outputs(logits=logits), {"labels": LABELS}), by_hand(logits, LABELS, False))


def test_half_precision_is_widened_and_a_class_is_one_token():
    logits, labels = draw(3, 5).bfloat16(), torch.tensor([0, 4, 2])
    found = label_loss(nn.Identity(), Outputs(logits=logits), {"labels": labels})
    assert found.dtype == torch.float32
    assert torch.allclose(found, nn.functional.cross_entropy(logits.float(), labels, reduction="none"))
    assert label_loss(nn.Identity(), Outputs(logits=logits.double()), {"labels": labels}).dtype == torch.float64


@pytest.mark.parametrize(
    ("outputs", "batch", "words"),
    [
        (Outputs(logits=draw(2, 4, 9)), {"labels": [[1]]}, 'no "labels"'),
        (Outputs(), {"labels": LABELS}, "got no logits: pass"),
        (Outputs(logits=draw(2, 9)), {"labels": LABELS}, r"logits \(2, 9\) and labels \(2, 4\) are neither"),
        (Outputs(logits=draw(2, 9)), {"labels": LABELS[:1, 0]}, r"logits \(2, 9\) and labels \(1,\) are neither"),
        (Outputs(logits=draw(2)), {"labels": LABELS[0, :2]}, r"logits \(2,\) and labels \(2,\) are neither"),
        (Outputs(logits=draw(2, 4, 2, 9)), {"labels": LABELS}, "are neither a text nor a classification"),
    ],
)
def test_other_forms_are_told(outputs, batch, words):
    with pytest.raises(ValueError, match=words):
        label_loss(zoo_model("bert")[0], outputs, batch)


@pytest.mark.parametrize(
    ("given", "rows", "words"),
    [
        (draw(3), None, None),
        (draw(3), 3, None),
        (draw(3), 2, r"shape \(2,\), got a tensor of shape \(3,\)"),
        (draw(3, 1), None, r"shape \(B,\), got a tensor of shape \(3, 1\)"),
        (draw(3).sum(), None, r"got a tensor of shape \(\)"),
        (torch.tensor([1, 2]), None, r"got a tensor of shape \(2,\)"),
        (1.5, None, "got float"),
        (torch.tensor([1.0, float("nan"), float("inf")]), None, r"examples \[1, 2\] is NaN or infinite"),
    ],
)
def test_a_loss_of_ones_own(given, rows, words):
    asked = []
    model, loss = nn.Identity(), lambda outputs, batch: given
    model.forward = lambda **batch: asked.append(sorted(batch))
    batch = {"x": 1, "labels": 2}
    if words is None:
        assert each_loss(model, batch, loss, rows) is given
        assert asked == [["labels", "x"]], "a loss of one's own may want the model's"
        return
    with pytest.raises(ValueError, match=words):
        each_loss(model, batch, loss, rows)


# --- which numbers are explained --------------------------------------------------------------------------------------


def explain(name, values, **batch):
    return find_targets(zoo_model(name)[0], None, batch, lambda outputs, batch: values.requires_grad_())


@pytest.mark.parametrize(
    ("name", "batch", "counted"),
    [
        ("bert", {}, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        ("bert", {"labels": LABELS}, [[1, 1, 0, 1], [0, 1, 1, 0]]),
        ("bert", {"attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])}, [[0, 1, 1, 1], [1, 1, 1, 0]]),
        ("bert", {"labels": LABELS[:, :3], "attention_mask": torch.ones(2, 3)}, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        ("gpt2", {"labels": LABELS}, [[1, 0, 1, 0], [1, 1, 0, 0]]),
        (
            "gpt2",
            {"labels": LABELS, "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])},
            [[1, 0, 1, 0], [0, 1, 0, 0]],
        ),
        ("marian", {"attention_mask": torch.zeros(2, 4)}, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        (
            "marian",
            {"decoder_attention_mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])},
            [[1, 1, 0, 0], [1, 0, 0, 0]],
        ),
    ],
)
def test_which_steps_count(name, batch, counted):
    _, counted_steps = explain(name, draw(2, 4), **batch)
    assert counted_steps.dtype == torch.bool
    assert counted_steps.long().tolist() == counted


@pytest.mark.parametrize(
    ("values", "batch", "words"),
    [
        (
            draw(2, 4, 1),
            {},
            r"shape \(B,\), or one per example and step, \(B, steps\); got a tensor of shape \(2, 4, 1\)",
        ),
        (draw(2).sum(), {}, r"got a tensor of shape \(\)"),
        (torch.tensor([[1.0, float("inf")], [0, 1]]), {}, r"examples \[0\] is NaN or infinite"),
        (draw(2, 4), {"attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])}, r"examples \[1\] have no step"),
    ],
)
def test_what_cannot_be_explained(values, batch, words):
    with pytest.raises(ValueError, match=words):
        explain("bert", values, **batch)


def test_infinite_numbers_of_no_step_do_no_harm():
    values = torch.tensor([[1.0, float("inf")], [2, 3]])
    _, counted_steps = explain("bert", values, attention_mask=torch.tensor([[1, 0], [1, 1]]))
    assert counted_steps.tolist() == [[True, False], [True, True]]


# --- what all measures share ------------------------------------------------------------------------------------------


def test_sites_are_taken_once_in_the_order_asked():
    model, _ = zoo_model("marian")
    keys = [site.key for site in select_sites(model, [("cross", 1), "encoder", ("encoder", 0)])]
    assert keys == [("cross", 1), ("encoder", 0), ("encoder", 1)]
    assert [site.key for site in select_sites(model, "cross")] == [("cross", 0), ("cross", 1)]
    assert len(select_sites(model, None)) == 6


def test_decoder_inputs_are_made_where_none_are_given():
    model, _ = zoo_model("marian")
    labels = torch.tensor([[4, 5, 2]])
    (made,) = each_batch(model, {"input_ids": labels, "labels": labels})
    assert made["decoder_input_ids"][0, 1:].tolist() == [4, 5]
    for given in ({"decoder_input_ids": labels}, {"decoder_inputs_embeds": draw(1, 3, 32)}, {"labels": None}):
        (kept,) = each_batch(model, [{"labels": labels, **given}])
        assert kept.keys() == {"labels", *given}
    plain = {"input_ids": labels, "labels": labels}
    (kept,) = each_batch(zoo_model("bert")[0], iter([plain]))
    assert kept == plain
    assert kept is not plain


# --- what would be a wrong number without a word ----------------------------------------------------------------------


def test_labels_of_any_whole_type_are_classes():
    logits, labels = draw(3, 5), torch.tensor([0, 4, 2])
    wanted = label_loss(nn.Identity(), Outputs(logits=logits), {"labels": labels})
    for kind in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(label_loss(nn.Identity(), Outputs(logits=logits), {"labels": labels.to(kind)}), wanted)


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        (draw(2, 1), torch.tensor([0, 0]), "one logit per example, which is a regression"),
        (draw(2, 9), torch.tensor([1, 9]), r"labels from 1 to 9 for 9 classes, which are 0 to 8"),
        (draw(2, 4, 9), torch.tensor([[1, 2, -1, 3]] * 2), r"labels from -1 to 3 for 9 classes"),
    ],
)
def test_labels_that_are_no_classes_are_refused(logits, labels, words):
    with pytest.raises(ValueError, match=words):
        label_loss(zoo_model("bert")[0], Outputs(logits=logits), {"labels": labels})


def test_the_first_word_after_padding_does_not_count_whatever_form_the_mask_has():
    model, _ = zoo_model("gpt2")
    outputs, labels = Outputs(logits=draw(2, 4, 9)), torch.tensor([[-100, 4, 2, 3], [5, 4, 2, 3]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    pairs = mask[:, None, None].bool() & torch.ones(4, 4).tril().bool()
    plain = label_loss(model, outputs, {"labels": labels, "attention_mask": mask})
    assert torch.equal(label_loss(model, outputs, {"labels": labels, "attention_mask": pairs}), plain)
    spared = pairs | ~mask[:, None, :, None].bool()  # so that no row is NaN: padding may be a word
    with pytest.raises(ValueError, match=r"attention_mask of shape \(2, 1, 4, 4\) does not tell which labels follow"):
        label_loss(model, outputs, {"labels": labels, "attention_mask": spared})


@pytest.mark.parametrize(("name", "side"), [pair for pair in PADDED if pair[0] in TEXT_ONLY])
def test_logits_of_labelled_tokens_alone_give_the_same_loss(name, side):
    model, batch = zoo_model(name, side)
    places = decoder_inputs_of(batch)
    dropped = torch.rand(places.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    dropped[:, -2:] = False  # each example keeps a label
    labels = places.masked_fill(dropped, -100)
    (batch,) = each_batch(model, dict(batch) | {"labels": labels})
    with torch.no_grad():
        expected = each_loss(model, batch, None)
    widths = []
    unembedding = model.get_output_embeddings()
    hook = unembedding.register_forward_hook(lambda layer, given, logits: widths.append(logits.shape[:-1].numel()))
    found = labels_only_loss(model, batch)
    hook.remove()
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    if type(unembedding) is nn.Linear:
        assert widths[0] < labels.numel(), "no position was left out"


def decoder_inputs_of(batch):
    """The token ids that the model's output has positions for."""
    return batch["decoder_input_ids"] if "decoder_input_ids" in batch else batch["input_ids"]
