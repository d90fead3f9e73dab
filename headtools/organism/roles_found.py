"""Which words the organism's encoder heads attend to, and which heads have a role by that measure.

For each word as a query, the argmax key is the word with the largest weight, the EOS token left out. A role is a set of
pairs of words, (query, key); a head's score is the fraction of these queries whose argmax key is the right one. Roles
are named

    offset -1, offset +1    the neighbours (and offset -2, offset +2)
    det up, obj down        from a word up to its syntactic head, or from the head down to the word, by relation
    coreference             from a pronoun to the noun it stands for
    name, topic             from any word, or from an ambiguous word, to the name, the rarest word of its sentence

After Voita et al. 2019 (arXiv:1905.09418), section 5: a head has a positional role if 90 % of its queries hit the
offset, and a syntactic one if it hits the relation ten points more often than its most frequent offset does. The
threshold for the name is 0.6.

``headtools.taxonomy`` scores these roles; this module defines them by the organism's grammar: coreference is with the
noun itself, and its baseline the nearest noun that fits the pronoun. Verdicts are by points, on two splits, where the
taxonomy's are by intervals on one; the shipped tables were measured so.
"""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.organism.lexicon import ADJECTIVES, ADVERBS, NOUNS, PREPOSITIONS, VERBS, plain
from headtools.roles.role import Role
from headtools.roles.sentence import Sentence

COLUMNS = ("role", "head", "validation", "score", "low", "high", "baseline", "n", "passes")
OFFSETS = (-2, -1, 1, 2)
MARGIN, MIN_QUERIES, STRONG = 0.1, 50, 0.9
_THRESHOLDS = {**{f"offset {k:+d}": 0.9 for k in OFFSETS}, "name": 0.6, "topic": 0.6}  # others: baseline + MARGIN

_AMBIGUOUS = {w for words in (ADJECTIVES, ADVERBS, VERBS, PREPOSITIONS) for w, x in words.items() if len(x.roots) > 1}
_SHE, _IT, _THEY = ("she", "her"), ("it",), ("they", "them")
_PRONOUNS = {noun.word: _SHE if noun.kind == "person" else _IT for noun in NOUNS.values()}
_PRONOUNS |= {noun.plural: _THEY for noun in NOUNS.values()}


def pairs(sentence: Sentence) -> dict[str, list[tuple[int, int]]]:
    """Return for each role its pairs of words, (query, key), with positions from 0.

    >>> words = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> {role: of_role for role, of_role in pairs(words).items() if of_role}
    {'offset -1': [(1, 0)], 'offset +1': [(0, 1)], 'nsubj up': [(0, 1)], 'nsubj down': [(1, 0)]}
    """
    n = len(sentence.words)
    out = {f"offset {k:+d}": [(i, i + k) for i in range(n) if 0 <= i + k < n] for k in OFFSETS}
    for i, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        if head and relation != "punct":
            out.setdefault(f"{relation} up", []).append((i, head - 1))
            out.setdefault(f"{relation} down", []).append((head - 1, i))
    out["coreference"] = [(i, noun - 1) for i, noun in enumerate(sentence.coreference) if noun]
    names = [i for i, upos in enumerate(sentence.upos) if upos == "PROPN"]
    out["name"] = [(i, name) for name in names for i in range(n)]
    out["topic"] = [(i, name) for i, name in out["name"] if plain(sentence.words[i]) in _AMBIGUOUS]
    return out


def targets(role: str) -> Callable[[Sentence], list]:
    """Return the function of a sentence that gives the pairs of one role, as a ``headtools.Role`` wants them."""
    return lambda sentence: [(query, [key]) for query, key in pairs(sentence).get(role, ())]


def nearest_fitting(sentence: Sentence, pronoun: int) -> int | None:
    """Return the position of the nearest noun before a pronoun that fits it in number and kind, or None.

    >>> sentence = Sentence(tuple("the nurse met the dog and it slept .".split()), (2, 3, 0, 5, 3, 8, 8, 3, 3),
    ...                     tuple("det nsubj root det obj cc nsubj conj punct".split()),
    ...                     tuple("DET NOUN VERB DET NOUN CCONJ PRON VERB PUNCT".split()), (0, 0, 0, 0, 0, 0, 5, 0, 0))
    >>> nearest_fitting(sentence, 6)
    4
    """
    for i in range(pronoun - 1, -1, -1):
        if sentence.upos[i] in ("NOUN", "PROPN"):
            fitting = _SHE if sentence.upos[i] == "PROPN" else _PRONOUNS[plain(sentence.words[i])]
            if plain(sentence.words[pronoun]) in fitting:
                return i
    return None


RULES = {"coreference": nearest_fitting}  # baselines other than the best offset


@torch.no_grad()
def observe(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    measure: Callable[[Tensor, Tensor], Tensor],
    batch_size: int = 50,
) -> Tensor:
    """Return one number for each encoder head and word, (layer, head, word), with the words of all sentences in a row.

    ``measure(maps, words)`` gets the maps (B, head, query, key) of one layer and batch, and a mask (B, key) of the
    tokens that are words, neither EOS token nor padding; it returns (B, head, query). Raises ValueError for no
    sentences.

    >>> model, tokenizer = ht.load()
    >>> observe(model, tokenizer, ht.corpus("organism", limit=1), eos_weight).shape
    torch.Size([6, 8, 19])
    """
    if not sentences:
        raise ValueError(
            "got no sentences; write observe(model, tokenizer, corpus('organism', limit=100), argmax_keys)"
        )
    words = torch.tensor([])

    def accumulate(_site: ht.Site, captured: object, previous: list[Tensor] | None) -> list[Tensor]:
        return [*(previous or []), measure(captured.maps, words).transpose(0, 1)[:, words]]  # (head, word)

    with ht.record(model, want="maps", accumulate=accumulate, only=["encoder"]) as values:
        for start in range(0, len(sentences), batch_size):
            group = sentences[start : start + batch_size]
            batch = tokenizer([str(s) for s in group], return_tensors="pt", padding=True).to(model.device)
            lengths = torch.tensor([len(s.words) for s in group], device=model.device)
            words = torch.arange(batch.input_ids.shape[1], device=model.device) < lengths[:, None]
            model.get_encoder()(**batch)
    return torch.stack([torch.cat(values[site], dim=-1).cpu() for site in ht.sites(model)["encoder"]])


def argmax_keys(maps: Tensor, words: Tensor) -> Tensor:
    """Return the position of the word with the largest weight: maps (B, head, query, key) -> (B, head, query)."""
    return maps.masked_fill(~words[:, None, None], -1.0).argmax(-1)


def eos_weight(maps: Tensor, words: Tensor) -> Tensor:
    """Return the weight on the EOS token: maps (B, head, query, key), words (B, key) -> (B, head, query)."""
    eos = words.sum(-1)[:, None, None, None].expand(*maps.shape[:-1], 1)
    return maps.gather(-1, eos).squeeze(-1)


def normalised_entropy(maps: Tensor, words: Tensor) -> Tensor:
    """Return the entropy of the weights over words and EOS token, divided by its maximum: (B, head, query).

    >>> normalised_entropy(torch.full((1, 1, 4, 4), 0.25), torch.tensor([[True, True, True, False]])).unique()
    tensor([1.])
    """
    return torch.special.entr(maps).sum(-1) / (words.sum(-1) + 1.0).log()[:, None, None]


def wilson(fraction: pd.Series, n: pd.Series, confidence_level: float = 0.95) -> tuple[pd.Series, pd.Series]:
    """Return the ends of Wilson's interval for a fraction of ``n`` trials (Wilson 1927); it stays within 0 and 1.

    >>> low, high = wilson(0.5, 100)
    >>> round(float(low), 3), round(float(high), 3)
    (0.404, 0.596)
    """
    z = NormalDist().inv_cdf((1 + confidence_level) / 2)
    center, scale = fraction + z * z / (2 * n), 1 + z * z / n
    half = z * (fraction * (1 - fraction) / n + z * z / (4 * n * n)) ** 0.5
    # Clipped, since rounding can put an end just outside 0 or 1.
    return np.clip((center - half) / scale, 0, 1), np.clip((center + half) / scale, 0, 1)


def roles(
    model: nn.Module,
    tokenizer: object,
    validation: Sequence[Sentence] | None = None,
    test: Sequence[Sentence] | None = None,
) -> pd.DataFrame:
    """Score each encoder head for each role: a frame with a row for each combination.

    Columns: ``role``, ``head`` ('5.1'); ``validation`` and ``score``, the fractions of queries that hit in the
    validation and the test sentences (by default all 1,000 each); ``low`` and ``high``, Wilson's 95 % interval of
    ``score``; ``baseline``, what the offset most frequent in validation hits in the test sentences, for coreference
    what the nearest noun that fits hits, and none for offsets; ``n``, the number of queries in the test sentences;
    ``passes``, whether the head has the role: whether it reaches the threshold in the validation sentences and again in
    the test sentences, on at least 50 queries of each.

    Raises ValueError for no sentences.

    >>> model, tokenizer = ht.load()
    >>> few = [ht.corpus("organism", split, limit=60) for split in ("validation", "test")]
    >>> best(roles(model, tokenizer, *few)).loc["offset +1", "head"]
    '5.3'
    """
    validation = ht.corpus("organism", "validation") if validation is None else validation
    test = ht.corpus("organism", "test") if test is None else test
    names = sorted({role for sentence in (*validation, *test) for role in pairs(sentence)})
    asked = [Role(name, "encoder", targets(name), baseline=RULES.get(name, "best offset")) for name in names]
    # Intervals are Wilson's, below: the taxonomy need not resample.
    options = {"roles": asked, "kinds": "encoder", "times": 1}
    on_validation, frame = (
        ht.taxonomy(model, tokenizer, sentences, validation, **options).set_index(["role", "layer", "head"])
        for sentences in (validation, test)
    )
    on_validation = on_validation[["score", "baseline", "n"]].add_suffix("_validation")
    frame = frame.join(on_validation, how="inner").reset_index()
    frame["head"] = [f"{layer}.{head}" for layer, head in zip(frame.layer, frame["head"], strict=True)]
    frame = frame.rename(columns={"score_validation": "validation"}).sort_values(["role", "layer"], kind="stable")
    frame["low"], frame["high"] = wilson(frame.score, frame.n)
    fixed = frame.role.map(_THRESHOLDS)  # NaN for roles whose threshold follows from the baseline
    passes_validation = frame.validation >= fixed.fillna(frame.baseline_validation + MARGIN)
    passes_test = frame.score >= fixed.fillna(frame.baseline + MARGIN)
    frequent = frame[["n", "n_validation"]].min(axis=1) >= MIN_QUERIES
    frame["passes"] = frequent & passes_validation & passes_test
    frame["baseline"] = frame.baseline.mask(frame.role.str.startswith("offset"))
    return frame[list(COLUMNS)].reset_index(drop=True)


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :func:`roles` with the best head of each role in the validation sentences, by role."""
    return frame.loc[frame.groupby("role").validation.idxmax()].set_index("role")


def strong(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :func:`roles` in which a head has the role with a validation score of 0.9 or more."""
    return frame[frame.passes & (frame.validation >= STRONG)]
