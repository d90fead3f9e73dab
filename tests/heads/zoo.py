"""Tiny random models of many architectures, each with a padded batch.

`zoo_model(name)` gives the shared copy of a model and must leave it as it was; `fresh(name)` gives a copy to change.
`BUILDERS` says how each is built and which kind of batch (batches.py) it reads.
"""

import copy
from functools import cache

import torch
import transformers as tf

from .batches import VOCAB, make_batch

TEXT = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
GROUPED = PLAIN | {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2}
BERT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BART = dict(
    **TEXT,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
    max_position_embeddings=40,
    dropout=0.0,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
)


def _bert_like(config_class, model_class, **changes):
    return lambda: model_class(config_class(**(TEXT | PLAIN | BERT_DROPOUT | changes)))


def _decoder(config_class, model_class, **changes):
    return lambda: model_class(config_class(**(TEXT | PLAIN | changes)))


def _distilbert():
    return tf.DistilBertForMaskedLM(
        tf.DistilBertConfig(
            vocab_size=VOCAB, dim=32, n_layers=3, n_heads=4, hidden_dim=40, dropout=0.0, attention_dropout=0.0
        )
    )


def _gpt2(**changes):
    config = {
        "vocab_size": VOCAB,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 40,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return tf.GPT2Config(**config, **dropout, **changes)


def _bert_config(**changes):
    return tf.BertConfig(**(TEXT | PLAIN | BERT_DROPOUT | changes))


def _encoder_decoder():
    model = tf.EncoderDecoderModel(
        encoder=tf.BertModel(_bert_config(num_hidden_layers=2)),
        decoder=tf.GPT2LMHeadModel(_gpt2(add_cross_attention=True, is_decoder=True)),
    )
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    return model


def _t5():
    shape = {
        "vocab_size": VOCAB,
        "d_model": 32,
        "d_kv": 6,
        "d_ff": 40,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
    }
    return tf.T5ForConditionalGeneration(tf.T5Config(**shape, dropout_rate=0.0, decoder_start_token_id=0))


def _whisper():
    shape = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    rest = {"d_model": 32, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "num_mel_bins": 8, "max_source_positions": 10}
    quiet = {"dropout": 0.0, "max_target_positions": 20, "decoder_start_token_id": 1}
    return tf.WhisperForConditionalGeneration(tf.WhisperConfig(**TEXT, **shape, **rest, **quiet))


def _vit():
    shape = {"image_size": 16, "patch_size": 4, "num_labels": 5}
    return tf.ViTForImageClassification(tf.ViTConfig(**PLAIN, **BERT_DROPOUT, **shape))


def _clip():
    text = dict(**TEXT, **PLAIN, max_position_embeddings=40, projection_dim=16)
    vision = dict(PLAIN, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4, projection_dim=16)
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))


def _deepseek():
    shape = dict(TEXT, **PLAIN, num_key_value_heads=4, moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1)
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
    routing = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    return tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**shape, **latent, **routing))


def _fsmt():
    config = {"langs": ["xx", "yy"], "src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB}
    names = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    config |= {name: BART[name] for name in (*names, "encoder_ffn_dim", "decoder_ffn_dim")}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "dropout": 0.0}
    return tf.FSMTForConditionalGeneration(tf.FSMTConfig(**config, **special, max_position_embeddings=40))


# name -> (how to build it, the kind of batch it reads)
BUILDERS = {
    "bert": (_bert_like(tf.BertConfig, tf.BertForMaskedLM), "text"),
    "roberta": (_bert_like(tf.RobertaConfig, tf.RobertaForMaskedLM), "text"),
    "distilbert": (_distilbert, "text"),
    "albert": (_bert_like(tf.AlbertConfig, tf.AlbertForMaskedLM, embedding_size=16), "text"),
    "modernbert": (
        _bert_like(
            tf.ModernBertConfig,
            tf.ModernBertForMaskedLM,
            local_attention=4,
            global_attn_every_n_layers=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        "text",
    ),
    "electra": (_bert_like(tf.ElectraConfig, tf.ElectraForMaskedLM, embedding_size=16), "text"),
    "bert_decoder": (_bert_like(tf.BertConfig, tf.BertLMHeadModel, is_decoder=True), "causal"),
    "gpt2": (lambda: tf.GPT2LMHeadModel(_gpt2()), "causal"),
    "gpt_neox": (
        _decoder(tf.GPTNeoXConfig, tf.GPTNeoXForCausalLM, hidden_dropout=0.0, attention_dropout=0.0),
        "causal",
    ),
    "opt": (
        _decoder(tf.OPTConfig, tf.OPTForCausalLM, ffn_dim=40, dropout=0.0, word_embed_proj_dim=32),
        "causal",
    ),
    "llama": (_decoder(tf.LlamaConfig, tf.LlamaForCausalLM, **GROUPED), "causal"),
    "mistral": (_decoder(tf.MistralConfig, tf.MistralForCausalLM, **GROUPED, sliding_window=4), "causal"),
    "qwen2": (_decoder(tf.Qwen2Config, tf.Qwen2ForCausalLM, **GROUPED), "causal"),
    "qwen3": (_decoder(tf.Qwen3Config, tf.Qwen3ForCausalLM, **GROUPED, head_dim=12), "causal"),
    "gemma2": (
        _decoder(
            tf.Gemma2Config,
            tf.Gemma2ForCausalLM,
            **GROUPED,
            head_dim=12,
            sliding_window=4,
            query_pre_attn_scalar=12,
            attn_logit_softcapping=2.0,
        ),
        "causal",
    ),
    "gemma3": (
        _decoder(
            tf.Gemma3TextConfig,
            tf.Gemma3ForCausalLM,
            **GROUPED,
            head_dim=12,
            sliding_window=4,
            query_pre_attn_scalar=12,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        "causal",
    ),
    "gpt_oss": (
        _decoder(
            tf.GptOssConfig,
            tf.GptOssForCausalLM,
            **GROUPED,
            head_dim=12,
            sliding_window=4,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
        "causal",
    ),
    "phi3": (_decoder(tf.Phi3Config, tf.Phi3ForCausalLM, **GROUPED, resid_pdrop=0.0, embd_pdrop=0.0), "causal"),
    "bart": (lambda: tf.BartForConditionalGeneration(tf.BartConfig(**BART)), "seq2seq"),
    "marian": (lambda: tf.MarianMTModel(tf.MarianConfig(**BART)), "seq2seq"),
    "t5": (_t5, "seq2seq"),
    "whisper": (_whisper, "speech"),
    "vit": (_vit, "image"),
    "clip": (_clip, "image+text"),
    "deepseek_v3": (_deepseek, "causal"),
    "encoder_decoder": (_encoder_decoder, "seq2seq"),
    # without the attention interface
    "bloom": (
        lambda: tf.BloomForCausalLM(
            tf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=3, n_head=4, pad_token_id=0)
        ),
        "causal",
    ),
    "gptj": (
        lambda: tf.GPTJForCausalLM(
            tf.GPTJConfig(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, rotary_dim=4, n_positions=40)
        ),
        "causal",
    ),
    "deberta_v2": (
        _bert_like(
            tf.DebertaV2Config,
            tf.DebertaV2ForMaskedLM,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=4,
        ),
        "text",
    ),
    "fsmt": (_fsmt, "seq2seq"),
    # no output projection that could be found
    "xlnet": (
        lambda: tf.XLNetLMHeadModel(
            tf.XLNetConfig(vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=40, dropout=0.0)
        ),
        "text",
    ),
}


def _experts(config_class, model_class, **changes):
    return _decoder(config_class, model_class, **(GROUPED | {"num_experts_per_tok": 2} | changes))


def _dinov2():
    shape = {"image_size": 16, "patch_size": 4, "mlp_ratio": 1, "hidden_dropout_prob": 0.0, "num_labels": 5}
    return tf.Dinov2ForImageClassification(tf.Dinov2Config(**PLAIN, **shape))


def _llava():
    vision = dict(PLAIN, num_hidden_layers=2, image_size=16, patch_size=8, projection_dim=16)
    text = dict(**TEXT, **GROUPED, head_dim=8)
    return tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(
            vision_config=tf.CLIPVisionConfig(**vision),
            text_config=tf.LlamaConfig(**text),
            image_token_index=VOCAB - 1,
            vision_feature_layer=-1,
        )
    )


def _jamba():
    layers = {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
    mamba = {"mamba_d_state": 4, "mamba_d_conv": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False}
    return tf.JambaForCausalLM(tf.JambaConfig(**(TEXT | GROUPED | layers | mamba)))


# architectures whose weights have other names, or are split or joined, in a folder: for what is saved and read
RENAMED = {
    "dinov2": (_dinov2, "image"),
    "llava": (_llava, "image in text"),
    "mixtral": (_experts(tf.MixtralConfig, tf.MixtralForCausalLM, num_local_experts=4), "causal"),
    "qwen2_moe": (
        _experts(
            tf.Qwen2MoeConfig,
            tf.Qwen2MoeForCausalLM,
            num_experts=4,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        "causal",
    ),
    "qwen3_moe": (
        _experts(tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM, num_experts=4, moe_intermediate_size=16, head_dim=12),
        "causal",
    ),
    "granitemoe": (_experts(tf.GraniteMoeConfig, tf.GraniteMoeForCausalLM, num_local_experts=4), "causal"),
    "phimoe": (_experts(tf.PhimoeConfig, tf.PhimoeForCausalLM, num_local_experts=4, head_dim=8), "causal"),
    "jamba": (_jamba, "causal"),
}
LEGACY = ("bloom", "gptj", "deberta_v2", "fsmt")
REFUSED = ("xlnet",)
INTERFACE = tuple(name for name in BUILDERS if name not in LEGACY + REFUSED)
ALL = INTERFACE + LEGACY
# One architecture for each way of attending: bidirectional, fused Conv1D, grouped queries, shared position bias, cross
# attention, sinks, one layer called several times, no AttentionInterface.
MECHANISMS = ("bert", "gpt2", "llama", "t5", "marian", "gpt_oss", "albert", "bloom")
# Padding on the right for every architecture, on the left for those that tell positions in different ways.
LEFT = ("bert", "gpt2", "llama", "opt", "t5", "bloom")
PADDED = [(name, "right") for name in ALL] + [(name, "left") for name in LEFT]
TEXT_ONLY = tuple(name for name in ALL if BUILDERS[name][1] in ("text", "causal", "seq2seq"))


def _spread(model):
    """Weights large enough that heads, masks and biases all show in the logits (default ones are nearly uniform)."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2 and parameter.requires_grad:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            elif parameter.dim() == 1:
                parameter.add_(noise * 0.1)


@cache
def _built(name):
    torch.manual_seed(0)
    model = _builder(name)[0]().eval()
    _spread(model)
    return model


def _builder(name):
    return BUILDERS[name] if name in BUILDERS else RENAMED[name]


def zoo_model(name, side="right"):
    """The shared model of that name and a batch for it: leave the model as you found it."""
    return _shared(name), make_batch(_builder(name)[1], side)


@cache
def _shared(name):
    """What runs is a copy: transformers leaves hooks in a model that was asked for its attentions."""
    return copy.deepcopy(_built(name))


def fresh(name, side="right"):
    """A copy of the model, to be changed at will, and a batch for it."""
    return copy.deepcopy(_built(name)), make_batch(_builder(name)[1], side)


def logits(output):
    """The scores a model ends in, whatever it calls them: (B, T, vocabulary), (B, labels) or (B, B)."""
    return output.logits if hasattr(output, "logits") else output.logits_per_text


def run(model, batch):
    """The model's logits on a batch, without gradients or cache."""
    with torch.no_grad():
        return logits(model(**batch))


def valid(name, scores, batch):
    """The rows of `scores` that belong to real tokens, flattened to (n, ...)."""
    if _builder(name)[1] in ("text", "causal"):
        return scores[batch["attention_mask"].bool()]
    return scores


def decoder_only(name):
    """Whether the model generates from its own input."""
    return _builder(name)[1] == "causal"


def error(left, right):
    """The largest absolute difference, as a float; infinite where either is not finite."""
    if left.shape != right.shape:
        raise AssertionError(f"shapes differ: {tuple(left.shape)} and {tuple(right.shape)}")
    difference = (left.double() - right.double()).abs()
    return difference.nan_to_num(nan=float("inf")).max().item() if difference.numel() else 0.0
