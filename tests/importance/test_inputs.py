"""What measures do with the batches that come: decoder inputs made of labels, caches, nothing at all."""

import copy

import pytest
import torch

import headtools as ht
from headtools.importance._inputs import each_batch
from headtools.importance.confidence import confidence
from headtools.importance.gradient import gradient
from headtools.importance.loss import each_loss
from headtools.importance.relevance import relevance
from recipes.families import build

from ..heads.zoo import zoo_model
from .test_ablation import quietly
from .test_gradient import close, labelled, slopes_of

# The first four move labels by a function of their file, and so do two that hear; two have a method for everyone, and
# the last a private one.
MOVE_LABELS = {
    "m2m_100": "M2M100ForConditionalGeneration",
    "nllb-moe": "NllbMoeForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "speech_to_text": "Speech2TextForConditionalGeneration",
    "moonshine": "MoonshineForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "udop": "UdopForConditionalGeneration",
}
HEARD = {  # the others read
    "whisper": ("input_features", 80, 128),
    "speech_to_text": ("input_features", 20, 80),
    "moonshine": ("input_values", 3000),
}


@pytest.mark.parametrize("name", MOVE_LABELS)
def test_labels_alone_give_the_models_own_loss(name):
    model = build(name, MOVE_LABELS[name])
    model.config.pad_token_id = model.config.pad_token_id or 0
    labels = torch.randint(4, 40, (2, 5))
    labels[:, -1] = 2
    heard, *shape = HEARD.get(name, ("input_ids",))
    inputs = {heard: torch.randn(2, *shape) if shape else torch.randint(4, 40, (2, 6))}
    batch = {**inputs, "labels": labels}
    if name == "udop":  # reads words with their boxes on a page; its default configuration has no start token
        batch["bbox"], model.config.decoder_start_token_id = torch.rand(2, 6, 4), 0
    with torch.no_grad():
        own = model(**batch).loss.item()
        (prepared,) = each_batch(model, batch)
        each = each_loss(model, prepared, None)
    assert "decoder_input_ids" in prepared
    assert each.mean().item() == pytest.approx(own, rel=1e-4)
    assert set(slopes_of(model, batch)) == {site.key for site in ht.sites(model)}


def test_a_model_that_moves_labels_in_its_own_way_is_left_to_do_so():
    class Other(type(zoo_model("marian")[0])):
        prepare_decoder_input_ids_from_labels = None

        def forward(self, input_ids, attention_mask=None, labels=None, decoder_input_ids=None):
            if decoder_input_ids is None:
                decoder_input_ids = labels.flip(1).clamp(min=3)
            return super().forward(input_ids, attention_mask, decoder_input_ids)

    model, batch = labelled("marian")
    other = Other(model.config).eval()
    other.load_state_dict(model.state_dict())
    given = batch | {"decoder_input_ids": batch["labels"].flip(1).clamp(min=3)}
    del batch["decoder_input_ids"]
    close(slopes_of(other, batch), slopes_of(model, given))
    close(quietly(other, batch), quietly(model, given))
    assert torch.equal(confidence(other, batch, exclude=[]).flat(), confidence(model, given, exclude=[]).flat())


def test_a_start_mark_that_is_missing_is_named():
    model = build("m2m_100", MOVE_LABELS["m2m_100"])
    model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match=r"write model.config.decoder_start_token_id = "):
        gradient(model, {"input_ids": torch.ones(1, 2).long(), "labels": torch.ones(1, 2).long()})


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "clip"])
def test_inputs_that_need_gradients_change_nothing(name):
    """As `enable_input_require_grads` has it, which PEFT calls for checkpointing."""
    model, batch = copy.deepcopy(zoo_model(name)[0]), zoo_model(name)[1]

    def loss(outputs, _batch):
        one = outputs.logits if name != "clip" else torch.stack([outputs.text_embeds, outputs.image_embeds], 1)
        return (one * torch.linspace(-1, 1, one.shape[-1])).flatten(1).sum(1)

    plain = slopes_of(model, batch, loss)
    (model.text_model if name == "clip" else model).enable_input_require_grads()
    close(slopes_of(model, batch, loss), plain)


def test_embeddings_that_need_gradients_get_none():
    model, batch = labelled("bert")
    inputs = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    rest = {key: value for key, value in batch.items() if key != "input_ids"}
    close(slopes_of(model, {"inputs_embeds": inputs, **rest}), slopes_of(model, batch))
    assert inputs.grad is None
    with pytest.raises(ValueError, match="does not depend on encoder 0, encoder 1, encoder 2 in any batch"):
        gradient(model, {"inputs_embeds": inputs, **rest}, lambda _o, b: b["inputs_embeds"].mean((1, 2)))


@pytest.mark.parametrize(
    "measure",
    [gradient, confidence, relevance, quietly, lambda *given: ht.interaction(*given, progress=False)],
)
def test_nothing_and_caches_are_refused_in_words(measure):
    model, batch = labelled("gpt2")
    none = {key: value[:0] for key, value in batch.items()}
    with torch.no_grad():
        cache = model(batch["input_ids"][:, :3]).past_key_values
    for wrong, words in (
        (none, "the batch is empty: got a tensor of shape"),
        ([batch, {}], "the batch is empty: got a dict without entries"),
        (batch | {"past_key_values": cache}, "the batch has past_key_values: a cache grows with every forward pass"),
    ):
        with pytest.raises(ValueError, match=words):
            measure(model, wrong)


@pytest.mark.parametrize("given", [False, True], ids=["labels alone", "with decoder inputs"])
@pytest.mark.parametrize("name", ["encoder_decoder", "fsmt", "t5"])
def test_labels_change_how_the_decoder_is_masked(name, given):
    """FSMT hides what comes later only where labels came; EncoderDecoderModel hides words whose label is -100."""
    model, batch = zoo_model(name)
    labels = torch.randint(3, 90, (3, 5), generator=torch.Generator().manual_seed(1))
    labels[:, 2] = -100
    batch = batch | {"labels": labels}
    if not given and name == "fsmt":  # without decoder inputs it reads its source
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels.clone())
    elif not given:
        del batch["decoder_input_ids"]
    with torch.no_grad():
        own = model(**batch)
        own = torch.nn.functional.cross_entropy(own.logits.mT, labels, reduction="none").sum(1) / 4
        (prepared,) = each_batch(model, batch)
        assert torch.allclose(each_loss(model, prepared, None), own, atol=1e-5)
    slopes = slopes_of(model, batch)
    site = ht.sites(model)["decoder", 0]
    gate = torch.ones(3, site.heads, requires_grad=True)
    with ht.gates(model, {site.key: gate}):
        logits = model(**batch).logits
    (torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none").sum(1) / 4).sum().backward()
    assert torch.allclose(slopes[site.key], gate.grad, rtol=1e-3, atol=1e-5)
    step = relevance(model, batch, lambda outputs, _batch: outputs.logits[:, -1, 5], rules="gradient")
    gate = torch.ones(3, site.heads, requires_grad=True)
    with ht.gates(model, {site.key: gate}):
        model(**batch).logits[:, -1, 5].sum().backward()
    assert torch.allclose(step.values[site.key].float(), gate.grad.abs().mean(0), rtol=1e-3, atol=1e-5)


def test_labels_stay_what_they_are():
    """FSMT's shift_tokens_right writes padding into the labels themselves, and -100 would count as a word."""
    model, batch = zoo_model("fsmt")
    labels = torch.tensor([[5, -100, 7]]).expand(3, 3).clone()
    batch = {name: value for name, value in batch.items() if name != "decoder_input_ids"} | {"labels": labels}
    alone = slopes_of(model, batch)
    assert labels.tolist() == [[5, -100, 7]] * 3
    given = batch | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels.clone())}
    close(alone, slopes_of(model, given))
