"""What measures do with the batches that come: decoder inputs made of labels, caches, nothing at all."""

import copy

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools.importance._inputs import each_batch
from headtools.importance.confidence import confidence
from headtools.importance.gradient import gradient
from headtools.importance.loss import each_loss
from headtools.importance.relevance import relevance

from ..heads.zoo import zoo_model
from .test_ablation import quietly
from .test_gradient import close, labelled, slopes_of

MARKS = {"vocab_size": 40, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 3}
TWO = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
SOUND = {"num_mel_bins": 8, "input_features": 8}


def translators():
    yield "m2m_100", tf.M2M100ForConditionalGeneration, tf.M2M100Config, {**TWO, **MARKS}, "text"
    yield (
        "nllb_moe",
        tf.NllbMoeForConditionalGeneration,
        tf.NllbMoeConfig,
        {**TWO, **MARKS, "num_experts": 2, "encoder_sparse_step": 0, "decoder_sparse_step": 0},
        "text",
    )
    yield "blenderbot", tf.BlenderbotForConditionalGeneration, tf.BlenderbotConfig, {**TWO, **MARKS}, "text"
    small = tf.BlenderbotSmallForConditionalGeneration
    yield "blenderbot_small", small, tf.BlenderbotSmallConfig, {**TWO, **MARKS}, "text"
    yield (
        "whisper",
        tf.WhisperForConditionalGeneration,
        tf.WhisperConfig,
        {**TWO, **MARKS, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20},
        "sound",
    )
    yield (
        "speech_to_text",
        tf.Speech2TextForConditionalGeneration,
        tf.Speech2TextConfig,
        {
            **TWO,
            **MARKS,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "max_source_positions": 30,
            "max_target_positions": 20,
        },
        "frames",
    )
    yield (
        "moonshine",
        tf.MoonshineForConditionalGeneration,
        tf.MoonshineConfig,
        {
            **MARKS,
            "hidden_size": 16,
            "intermediate_size": 16,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 1,
            "encoder_num_attention_heads": 2,
            "decoder_num_attention_heads": 2,
        },
        "wave",
    )
    # whose models have a method for it
    yield "mbart", tf.MBartForConditionalGeneration, tf.MBartConfig, {**TWO, **MARKS}, "text"
    yield "pegasus", tf.PegasusForConditionalGeneration, tf.PegasusConfig, {**TWO, **MARKS}, "text"


@pytest.mark.parametrize(("name", "made", "config", "sizes", "reads"), list(translators()), ids=lambda x: str(x)[:16])
def test_labels_alone_give_the_models_own_loss(name, made, config, sizes, reads):
    torch.manual_seed(0)
    model = made(config(**sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    labels = torch.randint(4, 40, (2, 5))
    labels[:, -1] = 2
    inputs = {
        "text": {"input_ids": torch.randint(4, 40, (2, 6))},
        "sound": {"input_features": torch.randn(2, 8, 20)},
        "frames": {"input_features": torch.randn(2, 20, 8)},
        "wave": {"input_values": torch.randn(2, 3000)},
    }[reads]
    batch = {**inputs, "labels": labels}
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
    model = tf.M2M100ForConditionalGeneration(tf.M2M100Config(**{**TWO, **MARKS}))
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
