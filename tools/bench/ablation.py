"""What exact ablation of every head costs, against a loop with ``ablate``.

    python tools/bench/ablation.py [--rounds 3] [--json FILE] [--quick]

The loop runs the whole model once for each head. Beside the ratio stands the bound of the arithmetic: what an ablation
costs that computes nothing before the head it switches off, neither the layers below nor the attention of its own. The
weights are random, and the numbers of both must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import timing
import torch
import transformers
from torch import Tensor, nn

import headtools as ht
from headtools.importance.loss import each_loss

BOUND = 0.52
TOLERANCE = 1e-4  # of the greatest rise
UNIT, WORK, WHY = "loop over heads", "exact leave-one-out", "what lies above each head, by a full pass each"


@dataclass(frozen=True)
class Subject:
    """A model with a batch."""

    name: str
    model: nn.Module
    batch: dict[str, Tensor]
    bound: float | None = BOUND


def ragged(rows: int, tokens: int, shortest: int) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, tokens) of texts of different lengths."""
    mask = (torch.arange(tokens) < torch.linspace(tokens, shortest, rows).round()[:, None]).long()
    return torch.randint(10, 1000, (rows, tokens)) * mask, mask


def bert(layers: int = 12, rows: int = 2) -> Subject:
    """BERT-base as a classifier, with a small vocabulary: 12 layers of 12 heads."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers, vocab_size=1000, num_labels=3)
    model = transformers.BertForSequenceClassification(config).eval()
    ids, mask = ragged(rows, 64, 32)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(rows) % 3}
    return Subject(f"BERT-base, {rows} x 64 tokens", model, batch)


def marian(rows: int = 2) -> Subject:
    """The size of a Marian translation model: 6 + 6 layers of 8 heads, 512 wide, 2,048 between."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=8000,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    model = transformers.MarianMTModel(config).eval()
    ids, mask = ragged(rows, 64, 32)
    labels, counted = ragged(rows, 64, 40)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(counted == 0, -100)}
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    return Subject(f"Marian, 6 + 6 layers, {rows} x 64 tokens", model, batch)


def ours(subject: Subject) -> dict[tuple, Tensor]:
    """The rises of every example and head, by ``ht.ablation``."""
    return ht.ablation(subject.model, subject.batch, progress=False).rows


def naive(subject: Subject) -> dict[tuple, Tensor]:
    """The same by a full run for each head."""
    with torch.no_grad():
        base, rises = each_loss(subject.model, subject.batch, None).double(), {}
        for site in ht.sites(subject.model):
            columns = []
            for head in range(site.heads):
                with ht.ablate(subject.model, [(*site.key, head)]):
                    columns.append(each_loss(subject.model, subject.batch, None).double() - base)
            rises[site.key] = torch.stack(columns, 1)
    return rises


def measure(subject: Subject, rounds: int) -> dict:
    """The row of ``ht.ablation`` beside the loop, with the greatest difference as a share of the greatest rise."""
    found: dict[str, dict] = {}
    works = {
        UNIT: lambda: found.__setitem__(UNIT, naive(subject)),
        WORK: lambda: found.__setitem__(WORK, ours(subject)),
    }
    taken = timing.interleaved(works, rounds)
    most = max(value.abs().max().item() for value in found[UNIT].values())
    differ = max((found[WORK][key] - value).abs().max().item() / most for key, value in found[UNIT].items())
    row = {"counted": BOUND, "why": WHY, "bound": subject.bound, "difference": differ, "tolerance": TOLERANCE}
    return timing.row(taken, WORK, UNIT, model=subject.name, **row)


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=3)
    torch.set_num_threads(1)
    some = [bert(layers=1)] if given.quick else [bert(), marian()]
    timing.tell([measure(subject, given.rounds) for subject in some], given.json)


if __name__ == "__main__":
    main()
