"""Which target words a model gets right, given the right words so far; and tables in Markdown."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headtools.organism.batches import IGNORE
from headtools.roles.sentence import Sentence
from recipes.second_organism.batches import batches


@torch.no_grad()
def right_words(model: nn.Module, sentences: Sequence[Sentence], size: int = 50) -> Tensor:
    """Which target words and EOS tokens a model gets right, sentence after sentence: (words,), True or False."""
    correct = []
    for batch in batches(sentences, size):
        labels = batch.pop("labels")
        correct.append((model(**batch).logits.argmax(-1) == labels)[labels != IGNORE])
    return torch.cat(correct)


@torch.no_grad()
def losses(model: nn.Module, sentences: Sequence[Sentence], size: int = 50) -> Tensor:
    """Cross-entropy of every target word and EOS token in nats: (words,)."""
    values = []
    for batch in batches(sentences, size):
        labels = batch.pop("labels")
        logits = model(**batch).logits[labels != IGNORE]
        values.append(torch.nn.functional.cross_entropy(logits, labels[labels != IGNORE], reduction="none"))
    return torch.cat(values)


def by_sentence(words: Tensor, sentences: Sequence[Sentence]) -> Tensor:
    """Mean over each sentence's words and EOS token of what :func:`right_words` or :func:`losses` gave: (sentences,).

    >>> from headtools.organism.second.language import corpus
    >>> two = corpus("test", 2)
    >>> by_sentence(torch.ones(sum(len(s.target) + 1 for s in two)), two)
    tensor([1., 1.])
    """
    lengths = [len(sentence.target) + 1 for sentence in sentences]
    return torch.stack([part.float().mean() for part in words.split(lengths)])


def share(values: Tensor | Sequence[bool], digits: int = 4) -> float | None:
    """The mean, rounded for JSON; None of nothing."""
    values = torch.as_tensor(values, dtype=torch.float)
    return round(values.mean().item(), digits) if len(values) else None


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown.

    >>> print(table(["a", "b"], [[1, 0.5], [None, "x"]]))
    | a | b |
    |---|---|
    | 1 | 0.5 |
    | – | x |
    """
    lines = [list(header), ["---"] * len(header), *rows]
    text = ["| " + " | ".join("–" if cell is None else str(cell) for cell in line) + " |" for line in lines]
    text[1] = text[1].replace(" ", "")
    return "\n".join(text)
