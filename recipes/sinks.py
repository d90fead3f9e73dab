"""What removes an attention sink? ``python -m recipes.sinks``

Trains small causal models of one layer and one head on the Bigram-Backcopy task (Guo et al. 2024, arXiv:2410.13835).
Words follow each other by a table of bigrams; after one of three trigger words, however, the word before the trigger
comes again. So the head has work at triggers and none anywhere else, and softmax makes it put its weight somewhere.
Trained with ordinary softmax and with each of three changes to it, for several seeds of weights and batches.

Each finished run is kept in ``sinks.json``; the command trains those that are missing, or all seeds of ``--kind``.
"""

import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from tqdm import tqdm

from recipes._results import ASSETS, read, replace_row, update

FILE = ASSETS / "sinks.json"
KINDS = ("softmax", "off by one", "learned sink", "output gate")
SEEDS, STEPS = 6, (800, 1_600)  # a model is measured after so many steps of training, and trained no further
WORDS, LENGTH, WIDTH = 48, 32, 64  # words with the start token, which is 0; tokens per sequence; width of the model
TRIGGERS = 3  # the words 1, 2 and 3
ROWS, TEST_ROWS = 64, 512  # sequences per batch, and of the test
FIRST_MEASURED = 4  # attention is averaged over the positions from here on


def bigrams() -> Tensor:
    """Return the language: the probability of each word (column) after each word (row). The start token never returns.

    >>> table = bigrams()
    >>> table.shape, bool((table.sum(-1) - 1).abs().max() < 1e-6), table[:, 0].sum().item()
    (torch.Size([48, 48]), True, 0.0)
    """
    scores = 1.5 * torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(0))
    scores[:, 0] = -math.inf
    return scores.softmax(-1)


def is_trigger(words: Tensor) -> Tensor:
    """Return where the word is a trigger after which the word before it comes again: at no position before 2."""
    return (words >= 1) & (words <= TRIGGERS) & (torch.arange(words.shape[1]) >= 2)


def sequences(rows: int, generator: torch.Generator) -> Tensor:
    """Return random sequences of the language, (rows, LENGTH + 1): start token, any word, then by the rules.

    >>> words = sequences(2, torch.Generator().manual_seed(0))
    >>> again = is_trigger(words)[:, 1:-1]  # the word after such a trigger is the word before it
    >>> bool(again.any()), bool((words[:, 2:] == words[:, :-2])[again].all())
    (True, True)
    """
    cumulative = bigrams().cumsum(-1)
    words = torch.zeros(rows, LENGTH + 1, dtype=torch.long)
    words[:, 1] = torch.randint(1, WORDS, (rows,), generator=generator)
    for t in range(2, LENGTH + 1):
        draw = torch.rand(rows, 1, generator=generator)
        following = torch.searchsorted(cumulative[words[:, t - 1]], draw, right=True)[:, 0].clamp(max=WORDS - 1)
        copies = (words[:, t - 1] >= 1) & (words[:, t - 1] <= TRIGGERS) & (t > 2)
        words[:, t] = torch.where(copies, words[:, t - 2], following)
    return words


def best_loss() -> float:
    """Return the loss that no model can undercut, in nats per word: the entropy of the language, 0 after triggers.

    >>> 2.4 < best_loss() < 2.6
    True
    """
    table, words = bigrams(), sequences(4_096, torch.Generator().manual_seed(1))[:, :-1]
    entropy = -(table * table.clamp(min=1e-30).log()).sum(-1)
    return entropy[words].masked_fill(is_trigger(words), 0)[:, 1:].mean().item()


class OneHead(nn.Module):
    """A causal model of one layer with one head, whose attention is of one of :data:`KINDS`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.before_attention, self.before_inner, self.last = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.unembedding = nn.Linear(WIDTH, WORDS)
        self.sink = nn.Parameter(torch.zeros(()))  # the score of nothing; learned in one kind only
        self.gate = nn.Linear(WIDTH, 1)

    def attend(self, scores: Tensor) -> Tensor:
        """Return the weights of scores (rows, queries, keys); in two kinds they may sum to less than one."""
        if self.kind not in ("off by one", "learned sink"):
            return scores.softmax(-1)
        nothing = self.sink if self.kind == "learned sink" else torch.zeros(())
        with_nothing = torch.cat([scores, nothing.expand(*scores.shape[:-1], 1)], -1)
        return with_nothing.softmax(-1)[..., :-1]

    def forward(self, words: Tensor, hide_first: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits, attention weights, values and gates. ``hide_first``: no other token may see the first."""
        states = self.words(words) + self.positions.weight[: words.shape[1]]
        normed = self.before_attention(states)
        query, key, value = self.query_key_value(normed).chunk(3, -1)
        hidden = torch.ones(words.shape[1], words.shape[1]).triu(1).bool()
        if hide_first:
            hidden[1:, 0] = True
        scores = (query @ key.transpose(-1, -2) / math.sqrt(WIDTH)).masked_fill(hidden, -math.inf)
        weights = self.attend(scores)
        gates = self.gate(normed).sigmoid() if self.kind == "output gate" else torch.ones_like(normed[..., :1])
        states = states + self.output(gates * (weights @ value))
        states = states + self.inner(self.before_inner(states))
        return self.unembedding(self.last(states)), weights, value, gates[..., 0]


def word_losses(logits: Tensor, words: Tensor) -> Tensor:
    """Return the loss (rows, LENGTH - 1) of each word that the rules determine: all after the first."""
    return F.cross_entropy(logits[:, 1:].transpose(1, 2), words[:, 2:], reduction="none")


def train(kind: str, seed: int, steps: int) -> Iterator[OneHead]:
    """Yield the model after each step of its training; the seed sets its weights, seed and ``steps`` its batches."""
    torch.manual_seed(seed)
    model, generator = OneHead(kind), torch.Generator().manual_seed(1_000 + seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for words in sequences(ROWS * steps, generator).split(ROWS):
        loss = word_losses(model(words[:, :-1])[0], words).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield model


@torch.no_grad()
def measure(model: OneHead) -> dict[str, float]:
    """Return what the head does on the test sequences, and the loss with the first token and without it.

    ``first``: mean weight on the first token at words that are no triggers, ``first_trigger`` at triggers;
    ``itself``: weight of words that are no triggers on themselves; ``back``: weight of triggers on the word that comes
    again; ``sum``, ``sum_trigger``: sums of the weights; ``gate``, ``gate_trigger``: means of the output gate, 1 where
    there is none; ``written``, ``written_trigger``: norm of what the head writes, gate included; ``value_ratio``: norm
    of the first token's value by the mean norm of the others; ``rise``: what hiding the first token adds to the loss,
    with ``low`` and ``high``, the ends of its 95 % interval over sequences.
    """
    words = sequences(TEST_ROWS, torch.Generator().manual_seed(2))
    visible = words[:, :-1]
    logits, weights, value, gates = model(visible)
    losses = word_losses(logits, words)
    rise = (word_losses(model(visible, hide_first=True)[0], words) - losses).mean(-1)
    margin = 1.96 * rise.std().item() / math.sqrt(len(rise))
    counted = torch.arange(LENGTH) >= FIRST_MEASURED
    trigger = is_trigger(visible)
    at, other = trigger & counted, ~trigger & counted & (visible > TRIGGERS)
    back = F.pad(weights.diagonal(-1, 1, 2), (1, 0))
    output_norms = (model.output(weights @ value) * gates[..., None]).norm(dim=-1)
    norms = value.norm(dim=-1)
    return {
        "loss": losses.mean().item(),
        "loss_trigger": losses[trigger[:, 1:]].mean().item(),
        "first": weights[..., 0][other].mean().item(),
        "first_trigger": weights[..., 0][at].mean().item(),
        "itself": weights.diagonal(0, 1, 2)[other].mean().item(),
        "written": output_norms[other].mean().item(),
        "written_trigger": output_norms[at].mean().item(),
        "back": back[at].mean().item(),
        "sum": weights.sum(-1)[other].mean().item(),
        "sum_trigger": weights.sum(-1)[at].mean().item(),
        "gate": gates[other].mean().item(),
        "gate_trigger": gates[at].mean().item(),
        "value_ratio": (norms[:, 0].mean() / norms[:, 1:].mean()).item(),
        "rise": rise.mean().item(),
        "low": rise.mean().item() - margin,
        "high": rise.mean().item() + margin,
    }


def run(kind: str, seed: int, steps: Sequence[int]) -> list[dict]:
    """Return a row of the table for each number of steps: the model so far, and what its head does.

    >>> row, _ = run("off by one", seed=0, steps=[1, 2])
    >>> row["kind"], row["seed"], row["steps"], 0 < row["sum"] < 1, row["gate"]
    ('off by one', 0, 1, True, 1.0)
    """
    return [
        {"kind": kind, "seed": seed, "steps": step} | {name: round(value, 4) for name, value in measure(model).items()}
        for step, model in enumerate(train(kind, seed, max(steps)), start=1)
        if step in steps
    ]


def main(
    kind: Annotated[list[str] | None, typer.Option(help="train these again")] = None,
    seeds: int = SEEDS,
    steps: list[int] = list(STEPS),
    file: Path = FILE,
) -> None:
    """Train the models that are missing, or all of a kind again."""
    torch.set_num_threads(1)
    for name in kind or ():
        if name not in KINDS:
            raise typer.BadParameter(f"got --kind {name!r}; expected one of {', '.join(map(repr, KINDS))}")
    finished = {(row["kind"], row["seed"], row["steps"]) for row in read(file).get("runs", [])}
    requested = [(name, seed) for seed in range(seeds) for name in (kind or KINDS)]
    about = {
        "best_loss": round(best_loss(), 4),
        "threads": 1,
        "processor": platform.machine(),
        "torch": torch.__version__,
    }
    missing = [pair for pair in requested if any((*pair, step) not in finished for step in steps)]
    for name, seed in tqdm(requested if kind else missing, desc="models"):
        for row in run(name, seed, steps):
            update(
                file,
                lambda old, row=row: {
                    **about,
                    "runs": replace_row(
                        old.get("runs", []), row, lambda r: (KINDS.index(r["kind"]), r["seed"], r["steps"])
                    ),
                },
                row_key="kind",
            )
            tqdm.write(
                f"{name}, seed {seed}, {row['steps']} steps: loss {row['loss']:.3f}, "
                f"weight on the first token {row['first']:.2f}"
            )


if __name__ == "__main__":
    typer.run(main)
