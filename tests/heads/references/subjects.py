"""Small models whose weights follow a formula, so that two versions of transformers compute with the same ones."""

from __future__ import annotations

import torch
import transformers as tf
from torch import Tensor, nn

VOCAB = 24
PRUNED = {0: [1], 1: [0, 3]}  # layer: heads
# names of sites as headtools has them, and of what transformers 4 calls their masks
_BOTH = {"encoder": "head_mask", "decoder": "decoder_head_mask", "cross": "cross_attn_head_mask"}
KINDS = {
    "bert": {"encoder": "head_mask"},
    "distilbert": {"encoder": "head_mask"},
    "gpt2": {"decoder": "head_mask"},
    "t5": _BOTH,
    "bart": _BOTH,
}
CAN_PRUNE = ("bert", "distilbert", "gpt2", "t5")  # those whose class has prune_heads in transformers 4.57


def subject(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model in evaluation, with a padded batch of two."""
    eager = {"attn_implementation": "eager"}  # in transformers 4 the one that reads masks of heads
    size = {"vocab_size": VOCAB, "pad_token_id": 0}
    ids = torch.tensor([[3, 5, 7, 9, 11, 13], [4, 8, 15, 16, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    if name == "bert":
        model = tf.BertForMaskedLM(
            tf.BertConfig(
                **size,
                **eager,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=24,
                max_position_embeddings=12,
            )
        )
    elif name == "distilbert":
        model = tf.DistilBertForMaskedLM(
            tf.DistilBertConfig(
                **size, **eager, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=12
            )
        )
    elif name == "gpt2":
        model = tf.GPT2LMHeadModel(
            tf.GPT2Config(
                **eager,
                vocab_size=VOCAB,
                n_embd=16,
                n_layer=2,
                n_head=4,
                n_positions=12,
                bos_token_id=1,
                eos_token_id=2,
            )
        )
    elif name == "t5":
        model = tf.T5ForConditionalGeneration(
            tf.T5Config(
                **size,
                **eager,
                d_model=16,
                d_kv=4,
                d_ff=24,
                num_layers=2,
                num_decoder_layers=2,
                num_heads=4,
                decoder_start_token_id=0,
            )
        )
    else:
        model = tf.BartForConditionalGeneration(
            tf.BartConfig(
                **size,
                **eager,
                d_model=16,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=24,
                decoder_ffn_dim=24,
                max_position_embeddings=12,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=2,
                forced_eos_token_id=None,
            )
        )
    if name in ("t5", "bart"):
        batch["decoder_input_ids"] = torch.tensor([[2, 6, 10, 14], [2, 12, 17, 1]])
    model.eval()
    by_formula(model)
    return model, batch


@torch.no_grad()
def by_formula(model: nn.Module) -> None:
    """Set every weight: a chirp of its own for each name, in the order of the alphabet, about 1 for scales of norms."""
    for number, (name, weight) in enumerate(sorted(model.named_parameters())):
        place = torch.arange(weight.numel(), dtype=torch.float64)
        wave = (place.square() * (0.37 + 0.011 * number) + 0.9 * number).sin().view_as(weight)
        norm = weight.dim() == 1 and name.endswith("weight")
        weight.copy_(1 + 0.2 * wave if norm else 0.35 * wave)


def losses(model: nn.Module, batch: dict[str, Tensor], **masks: Tensor) -> Tensor:
    """One number an example (B,): its logits at real tokens, each times a fixed weight."""
    logits = scores(model, batch, **masks)
    weights = (torch.arange(logits[0].numel(), dtype=torch.float64).square() * 0.3).cos().view_as(logits[0])
    return (logits * weights.to(logits)).flatten(1).mean(1)


def scores(model: nn.Module, batch: dict[str, Tensor], **masks: Tensor) -> Tensor:
    """The logits (B, T, VOCAB), 0 at padding."""
    logits = model(**batch, **masks).logits
    return logits if "decoder_input_ids" in batch else logits * batch["attention_mask"][..., None]
