"""Which tokens count: one rule for all measures, whatever form the mask has."""

import pytest
import torch

import headtools as ht
from headtools.heads._tokens import model_inputs, real_tokens

from .batches import by_pairs
from .zoo import zoo_model

WORDS = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()


def ask(name, mask, shape):
    model, _ = zoo_model(name)
    return real_tokens(model, next(iter(ht.sites(model))), {"attention_mask": mask}, shape)


@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("real", [WORDS, WORDS.flip(1), torch.ones(2, 4).bool()])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_by_pairs_tell_which_tokens_are_real(causal, real, kind):
    mask = by_pairs(real, causal, kind)
    assert torch.equal(ask("bert", mask, (2, 4)), real)
    assert torch.equal(ask("bert", {"full_attention": mask, "sliding_attention": mask}, (2, 4)), real)
    if not causal:
        assert torch.equal(ask("bert", mask[:, :, :1], (2, 4)), real)


def test_packed_texts_and_prefixes_are_real():
    packed = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).bool()[None, None]
    assert ask("bert", packed, (1, 4)).all()
    assert ask("bert", packed.tril(), (1, 4)).all()
    prefix = torch.ones(4, 4).tril().bool()
    prefix[:2, :2] = True
    assert ask("bert", prefix[None, None], (3, 4)).all()


@pytest.mark.parametrize("spared", ["all", "itself"])
def test_padding_that_was_spared_nan_cannot_be_told_from_words(spared):
    mask = by_pairs(WORDS.flip(1), True)
    for row, real in enumerate(WORDS.flip(1)):
        for place in (~real).nonzero().flatten().tolist():
            mask[row, 0, place, place if spared == "itself" else slice(None)] = True
    with pytest.raises(ValueError, match=r"attention_mask \(of shape \(2, 1, 4, 4\)\) does not tell which of the 4"):
        ask("bert", mask, (2, 4))


def test_pictures_are_not_masked_by_the_text_beside_them():
    """Also where there are as many patches as words."""
    model, _ = zoo_model("clip")
    sites, mask = ht.sites(model), torch.tensor([[1, 1, 0]])
    assert real_tokens(model, sites["vision_model", "encoder", 0], {"attention_mask": mask}, (1, 3)).all()
    assert real_tokens(model, sites["text_model", "decoder", 0], {"attention_mask": mask}, (1, 3)).tolist() == [
        [True, True, False]
    ]


def test_sound_is_masked_as_its_model_does_it():
    import transformers as tf

    config = tf.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8,),
        conv_kernel=(4,),
        conv_stride=(4,),
        num_feat_extract_layers=1,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        vocab_size=9,
    )
    model = tf.Wav2Vec2ForCTC(config).eval()
    mask = torch.ones(2, 32)
    mask[1, 16:] = 0
    found = real_tokens(model, next(iter(ht.sites(model))), {"attention_mask": mask}, (2, 8))
    assert found.sum(1).tolist() == [8, 4]


def test_labels_are_left_out_where_they_are_not_needed():
    translator, labels = zoo_model("marian")[0], torch.tensor([[1, 2]])
    assert model_inputs(translator, {"labels": labels}).keys() == {"labels"}
    assert model_inputs(translator, {"labels": labels[0]}) == {"use_cache": False}
    given = {"labels": labels, "decoder_input_ids": labels}
    assert model_inputs(translator, given).keys() == {"decoder_input_ids", "use_cache"}
    assert model_inputs(zoo_model("bert")[0], {"labels": labels}) == {}
