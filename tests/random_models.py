"""Tiny models of random architecture, size and precision, each with a random padded batch: what laws are tested on."""

from dataclasses import dataclass, field

import torch
import transformers as tf
from hypothesis import strategies as st

VOCAB = 32
SPECIAL = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
FAMILIES = ("bert", "distilbert", "gpt2", "opt", "llama", "qwen3", "phi3", "t5", "marian", "vit")
GROUPED = ("llama", "qwen3", "phi3")
TWO_SIDED = ("t5", "marian")


@dataclass
class Drawn:
    """One drawn model: its size in words (hypothesis prints it), the model and its batch."""

    family: str
    heads: int
    groups: int
    width: int
    layers: int
    dtype: str
    side: str
    lengths: tuple
    seed: int
    model: torch.nn.Module = field(repr=False, default=None)
    batch: dict = field(repr=False, default=None)

    @property
    def close(self):
        """How far two ways to compute the same may be apart, as a share of the largest number.

        Rotary embeddings, RMSNorm and T5's softmax work in single precision whatever the model's own is.
        """
        return 0.05 if self.dtype == "bfloat16" else 2e-5

    def alone(self, number):
        """One example of the batch by itself, its padding taken away: a batch of one."""
        if "pixel_values" in self.batch:
            return {name: value[number : number + 1] for name, value in self.batch.items()}
        real = self.batch["attention_mask"][number].bool()
        same = ("decoder_input_ids", "labels") if self.family in TWO_SIDED else ()
        return {
            name: value[number : number + 1] if name in same else value[number : number + 1, real]
            for name, value in self.batch.items()
        }


def drawn(families=FAMILIES, dtypes=tuple(DTYPES), sides=("right", "left")):
    """The strategy: any of these families, precisions and sides of padding, in any small size."""
    return st.builds(
        _build,
        family=st.sampled_from(families),
        groups=st.integers(1, 3),
        share=st.integers(1, 2),
        width=st.sampled_from([1, 2, 3, 4, 6]),
        layers=st.integers(1, 3),
        dtype=st.sampled_from(dtypes),
        side=st.sampled_from(sides),
        lengths=st.lists(st.integers(2, 6), min_size=1, max_size=3).map(tuple),
        seed=st.integers(0, 99),
    )


def _build(family, groups, share, width, layers, dtype, side, lengths, seed):
    if family in GROUPED:
        width += width % 2  # rotary embeddings turn pairs of features
    heads = groups * share
    one = Drawn(family, heads, groups, width, layers, dtype, side, lengths, seed)
    one.model = _spread(_model(one), seed).to(DTYPES[dtype]).eval()
    one.batch = _batch(one)
    return one


def _model(one):
    heads, wide = one.heads, one.heads * one.width
    plain = {"hidden_size": wide, "num_hidden_layers": one.layers, "num_attention_heads": heads, "intermediate_size": 8}
    grouped = plain | {"num_key_value_heads": one.groups, "head_dim": one.width}
    match one.family:
        case "bert":
            return tf.BertForMaskedLM(tf.BertConfig(**SPECIAL, **plain, **QUIET))
        case "distilbert":
            shape = {"dim": wide, "n_layers": one.layers, "n_heads": heads, "hidden_dim": 8, "vocab_size": VOCAB}
            return tf.DistilBertForMaskedLM(tf.DistilBertConfig(**shape, dropout=0.0, attention_dropout=0.0))
        case "gpt2":
            shape = {"n_embd": wide, "n_layer": one.layers, "n_head": heads, "n_positions": 16}
            quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            return tf.GPT2LMHeadModel(tf.GPT2Config(**SPECIAL, **shape, **quiet))
        case "opt":
            return tf.OPTForCausalLM(
                tf.OPTConfig(
                    **SPECIAL, **plain, ffn_dim=8, dropout=0.0, word_embed_proj_dim=wide, max_position_embeddings=16
                )
            )
        case "llama":
            return tf.LlamaForCausalLM(tf.LlamaConfig(**SPECIAL, **grouped))
        case "qwen3":
            return tf.Qwen3ForCausalLM(tf.Qwen3Config(**SPECIAL, **grouped))
        case "phi3":
            grouped.pop("head_dim")
            return tf.Phi3ForCausalLM(tf.Phi3Config(**SPECIAL, **grouped, resid_pdrop=0.0, embd_pdrop=0.0))
        case "t5":
            shape = {"d_model": 6, "d_kv": one.width, "d_ff": 8, "num_layers": one.layers, "num_heads": heads}
            config = tf.T5Config(vocab_size=VOCAB, **shape, dropout_rate=0.0, decoder_start_token_id=0)
            return tf.T5ForConditionalGeneration(config)
        case "marian":
            shape = {"d_model": wide, "encoder_layers": one.layers, "decoder_layers": one.layers, "dropout": 0.0}
            shape |= {"encoder_attention_heads": heads, "decoder_attention_heads": heads, "encoder_ffn_dim": 8}
            config = tf.MarianConfig(
                **SPECIAL,
                **shape,
                decoder_ffn_dim=8,
                max_position_embeddings=16,
                decoder_start_token_id=0,
                forced_eos_token_id=None,
            )
            return tf.MarianMTModel(config)
        case "vit":
            shape = {"image_size": 8, "patch_size": 4, "num_labels": 5}
            return tf.ViTForImageClassification(tf.ViTConfig(**plain, **QUIET, **shape))


def _spread(model, seed):
    """Weights large enough that heads, masks and biases all show."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if parameter.dim() >= 2 and parameter.requires_grad:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
            elif parameter.dim() == 1:
                parameter.add_(noise * 0.1)
    return model


def _batch(one):
    draw = torch.Generator().manual_seed(one.seed + 1)
    rows, tokens = len(one.lengths), max(one.lengths)
    if one.family == "vit":
        pixels = torch.randn(rows, 3, 8, 8, generator=draw).to(DTYPES[one.dtype])
        return {"pixel_values": pixels, "labels": torch.randint(5, (rows,), generator=draw)}
    place, size = torch.arange(tokens).expand(rows, tokens), torch.tensor(one.lengths)[:, None]
    mask = (place < size if one.side == "right" else place >= tokens - size).long()
    words = torch.randint(3, VOCAB, (rows, tokens), generator=draw) * mask
    batch = {"input_ids": words, "attention_mask": mask}
    if one.family in ("gpt2", "llama", "qwen3", "phi3"):  # positions are counted from the first real token
        batch["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    if one.family in TWO_SIDED:
        answer = torch.randint(3, VOCAB, (rows, 3), generator=draw)
        return batch | {"decoder_input_ids": answer.roll(1, 1), "labels": answer}
    return batch | {"labels": words.masked_fill(mask == 0, -100)}
