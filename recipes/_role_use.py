"""Are the roles used? What it costs to switch off the heads that have one, beside as many heads without it.

A head that looks at every verb's subject is used for it only if the words that need the subject suffer without the
head. So accuracy is measured on these words alone: those whose ``Sentence.phenomena`` name what the role could fetch.
"""

import random
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.bootstrap import bounds
from headtools.importance._intervals import linearised_ratio
from headtools.organism.batches import IGNORE, batches
from headtools.organism.roles_found import strong
from headtools.roles.sentence import Sentence

# Heads switched off together, and the phenomena of the words that could miss them.
GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "previous word": (("offset -1",), ("left accent",)),
    "next word": (("offset +1",), ("right accent",)),
    "its noun": (("det up", "amod up", "case up"), ("noun",)),
    "verb → subject": (("nsubj down",), ("subject",)),
    "verb → object": (("obj down",), ("object",)),
    "noun → verb": (("nsubj up", "obj up"), ("verb object", "role")),
    "adverb, had → verb": (("advmod up", "aux up"), ("verb family",)),
    "the name": (("topic",), ("topic",)),
    "coreference": (("coreference",), ("antecedent",)),
}
TIMES = 20


@torch.no_grad()
def role_use(
    model: nn.Module,
    found: pd.DataFrame,
    sentences: Sequence[Sentence],
    times: int = TIMES,
    alone: int | None = None,
) -> tuple[float, pd.DataFrame]:
    """What it costs to switch off heads with a role, beside sets of as many other encoder heads.

    ``found`` is what :func:`~headtools.organism.roles_found.roles` gave. Returns the share of target words that the
    whole model gets right given the words so far, and a frame with a row for each group of ``GROUPS`` that has heads,
    then for all strong heads and for all others (these two on all words): ``group``, ``heads``, ``words`` (phenomena
    of the words counted), ``n`` (how many), ``right`` (the whole model's share of them), ``fall`` of that share with
    the heads' outputs set to zero, ``beside`` (the mean fall over the other sets), ``most`` (their greatest),
    ``low`` and ``high`` (95 % interval of fall − beside, by bootstrap over sentences), and ``used``: low is above 0.

    One head stands beside each of the others (or ``alone`` of them, drawn at random), more heads beside ``times``
    random sets of others; where fewer others are left than the group has heads, sets are drawn from all. Raises
    ValueError for no sentences.

    >>> from headtools.organism.roles_found import roles
    >>> model, tokenizer = ht.load()
    >>> few = ht.corpus("organism", limit=3)
    >>> accuracy, frame = role_use(model, roles(model, tokenizer, few, few), few, times=1, alone=1)
    >>> accuracy > 0.9, "beside" in frame
    (True, True)
    """
    given = batches(sentences)
    everyone = sorted(found["head"].unique())
    seen: dict[tuple[str, ...], Tensor] = {}

    def right(heads: Sequence[str]) -> Tensor:
        """Which words are right, one after the other, without some heads."""
        key = tuple(sorted(heads))
        if key not in seen:
            with ht.ablate(model, [("encoder", *map(int, head.split("."))) for head in key]):
                seen[key] = torch.cat([_right(model, batch) for batch in given])
        return seen[key]

    whole, owner, phenomena = right([]), *_words(sentences)
    groups = {name: (sorted(set(found[found.found & found.role.isin(roles)]["head"])), words)
              for name, (roles, words) in GROUPS.items()}  # fmt: skip
    together = sorted(set(strong(found)["head"]))
    groups |= {"all strong": (together, ()), "all others": ([h for h in everyone if h not in together], ())}
    rows = []
    for name, (heads, words) in groups.items():
        if not heads:
            continue
        counted = torch.tensor([not words or any(word in words for word in some) for some in phenomena])
        n, correct = _by_sentence(torch.ones_like(owner), owner, counted), _by_sentence(whole, owner, counted)
        fall = correct - _by_sentence(right(heads), owner, counted)  # in words, by sentence
        others = torch.stack([correct - _by_sentence(right(some), owner, counted)
                              for some in _beside(heads, everyone, times, alone)])  # fmt: skip
        low, high = (end.item() for end in bounds(linearised_ratio((fall - others.mean(0))[:, None], n)))
        mean = others.sum(1) / n.sum()
        whole_share, share = (correct.sum() / n.sum()).item(), (fall.sum() / n.sum()).item()
        rows.append((name, heads, list(words), int(n.sum()), whole_share, share,
                     mean.mean().item(), mean.max().item(), low, high, low > 0))  # fmt: skip
    columns = ["group", "heads", "words", "n", "right", "fall", "beside", "most", "low", "high", "used"]
    return whole.double().mean().item(), pd.DataFrame(rows, columns=columns)


def _right(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Which target words of a batch the model gets right, sentence after sentence, end marks included."""
    out = model(**{name: value for name, value in batch.items() if name != "labels"})
    return (out.logits.argmax(-1) == batch["labels"])[batch["labels"] != IGNORE]


def _words(sentences: Sequence[Sentence]) -> tuple[Tensor, list[tuple[str, ...]]]:
    """For every target word and end mark: the number of its sentence, and its phenomena."""
    owner = torch.tensor([i for i, s in enumerate(sentences) for _ in range(len(s.target) + 1)])
    return owner, [some for s in sentences for some in (*s.phenomena, ())]


def _by_sentence(values: Tensor, owner: Tensor, counted: Tensor) -> Tensor:
    """Sums of the values (words,) that count, by sentence."""
    sums = torch.zeros(int(owner.max()) + 1, dtype=torch.double)
    return sums.index_add_(0, owner[counted], values[counted].double())


def _beside(heads: Sequence[str], everyone: Sequence[str], times: int, alone: int | None) -> list[list[str]]:
    """Sets of as many heads to compare with: each other head, or random ones."""
    others = [head for head in everyone if head not in heads]
    dice = random.Random(f"beside {len(heads)}")
    if len(heads) == 1:
        return [[head] for head in (others if alone is None else dice.sample(others, alone))]
    return [dice.sample(others if len(heads) <= len(others) else list(everyone), len(heads)) for _ in range(times)]
