"""Are the roles used? What it costs to ablate the heads that have one, compared with as many other heads.

A head that attends to the subject of every verb is used for this only if the words that depend on the subject get worse
without it. So accuracy is measured on these words alone: those whose ``Sentence.phenomena`` name what the role could
supply.
"""

import random
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.intervals import bounds, linearised_ratio
from headtools.organism.batches import IGNORE, batches
from headtools.organism.roles_found import strong
from headtools.roles.sentence import Sentence

# Roles whose heads are ablated together, and the phenomena of the words that could depend on them.
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
N_RANDOM_SETS = 20


@torch.no_grad()
def role_use(
    model: nn.Module,
    frame: pd.DataFrame,
    sentences: Sequence[Sentence],
    times: int = N_RANDOM_SETS,
    alone: int | None = None,
) -> tuple[float, pd.DataFrame]:
    """Return what it costs to ablate the heads of each role, compared with sets of as many other encoder heads.

    ``frame`` is the result of :func:`~headtools.organism.roles_found.roles`. Returns the fraction of target words that
    the full model gets right given the preceding words, and a frame with a row for each group of ``GROUPS`` that has
    heads, then one for all strong heads and one for all others (these two on all words): ``group``, ``heads``,
    ``words`` (the phenomena of the words counted), ``n`` (their number), ``right`` (the full model's accuracy on them),
    ``accuracy_drop`` (the accuracy lost when the outputs of the heads are set to zero), ``control_mean`` (the mean loss
    over the control sets), ``control_max`` (the largest of these), ``low`` and ``high`` (95 % interval of accuracy_drop
    − control_mean, by bootstrap over sentences), and ``used``: whether low is above 0.

    The control of one head is each of the other heads (or ``alone`` of them, drawn at random); of several heads,
    ``times`` random sets of other heads, or of all heads where too few others remain. Raises ValueError for no
    sentences.

    >>> from headtools.organism.roles_found import roles
    >>> model, tokenizer = ht.load()
    >>> few = ht.corpus("organism", limit=3)
    >>> accuracy, frame = role_use(model, roles(model, tokenizer, few, few), few, times=1, alone=1)
    >>> accuracy > 0.9, "control_mean" in frame
    (True, True)
    """
    test_batches = batches(sentences)
    all_heads = sorted(frame["head"].unique())
    cache: dict[tuple[str, ...], Tensor] = {}

    def correct_without(heads: Sequence[str]) -> Tensor:
        """Return which words are right, (words,), without some heads."""
        key = tuple(sorted(heads))
        if key not in cache:
            with ht.ablate(model, [("encoder", *map(int, head.split("."))) for head in key]):
                cache[key] = torch.cat([_correct(model, batch) for batch in test_batches])
        return cache[key]

    full_model, sentence_of, phenomena = correct_without([]), *_words(sentences)
    groups = {
        name: (sorted(set(frame[frame.passes & frame.role.isin(roles)]["head"])), words)
        for name, (roles, words) in GROUPS.items()
    }
    strong_heads = sorted(set(strong(frame)["head"]))
    groups |= {"all strong": (strong_heads, ()), "all others": ([h for h in all_heads if h not in strong_heads], ())}
    rows = []
    for name, (heads, words) in groups.items():
        if not heads:
            continue
        counted = torch.tensor([not words or any(word in words for word in of_word) for of_word in phenomena])

        def by_sentence(values: Tensor, counted: Tensor = counted) -> Tensor:
            return _sums_by_sentence(values, sentence_of, counted)

        n, correct = by_sentence(torch.ones_like(sentence_of)), by_sentence(full_model)  # (sentences,)
        lost = correct - by_sentence(correct_without(heads))
        controls = _control_sets(heads, all_heads, times, alone)
        control_lost = torch.stack([correct - by_sentence(correct_without(control)) for control in controls])
        low, high = (end.item() for end in bounds(linearised_ratio((lost - control_lost.mean(0))[:, None], n)))
        control_drops = control_lost.sum(1) / n.sum()
        accuracy, drop = (correct.sum() / n.sum()).item(), (lost.sum() / n.sum()).item()
        rows.append(
            (
                name,
                heads,
                list(words),
                int(n.sum()),
                accuracy,
                drop,
                control_drops.mean().item(),
                control_drops.max().item(),
                low,
                high,
                low > 0,
            )
        )
    columns = [
        "group",
        "heads",
        "words",
        "n",
        "right",
        "accuracy_drop",
        "control_mean",
        "control_max",
        "low",
        "high",
        "used",
    ]
    return full_model.double().mean().item(), pd.DataFrame(rows, columns=columns)


def _correct(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return which target words of a batch the model gets right, sentence after sentence, EOS tokens included."""
    outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
    return (outputs.logits.argmax(-1) == batch["labels"])[batch["labels"] != IGNORE]


def _words(sentences: Sequence[Sentence]) -> tuple[Tensor, list[tuple[str, ...]]]:
    """Return, for each target word and EOS token, the index of its sentence and its phenomena."""
    sentence_of = torch.tensor([i for i, s in enumerate(sentences) for _ in range(len(s.target) + 1)])
    return sentence_of, [of_word for s in sentences for of_word in (*s.phenomena, ())]


def _sums_by_sentence(values: Tensor, sentence_of: Tensor, counted: Tensor) -> Tensor:
    """Return the sums of the values (words,) that count, (sentences,)."""
    sums = torch.zeros(int(sentence_of.max()) + 1, dtype=torch.double)
    return sums.index_add_(0, sentence_of[counted], values[counted].double())


def _control_sets(heads: Sequence[str], all_heads: Sequence[str], times: int, n_single: int | None) -> list[list[str]]:
    """Return sets of as many heads to compare with: each other head, or random ones."""
    others = [head for head in all_heads if head not in heads]
    rng = random.Random(f"beside {len(heads)}")  # this seed gives the sets of the shipped table
    if len(heads) == 1:
        return [[head] for head in (others if n_single is None else rng.sample(others, n_single))]
    return [rng.sample(others if len(heads) <= len(others) else list(all_heads), len(heads)) for _ in range(times)]
