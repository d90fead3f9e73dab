"""Which words the organism's encoder heads look at, and which heads have a role by that measure.

A *look* is where a head's weight is greatest, EOS token left out. A role is a set of pairs of words (who should look
at whom); a head's score is the share of those looks that hit. Roles are named

    offset -1, offset +1    the neighbours (and offset -2, offset +2)
    det up, obj down        from a word up to its syntactic head, or from the head down to the word, by relation
    coreference             from a pronoun to the noun it stands for
    name, topic             from any word, or from an ambiguous word, to the name, the rarest word of its sentence

After Voita et al. 2019 (arXiv:1905.09418), section 5: a head with an offset hits it nine times in ten, a head with a
relation hits it ten points more often than a look at the relation's most frequent offset would. The name's bar is 0.6.
"""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.organism.lexicon import ADJECTIVES, ADVERBS, NOUNS, PREPOSITIONS, VERBS, plain
from headtools.roles.sentence import Sentence

OFFSETS = (-2, -1, 1, 2)
MARGIN, FEWEST, STRONG = 0.1, 50, 0.9
_BARS = {**{f"offset {k:+d}": 0.9 for k in OFFSETS}, "name": 0.6, "topic": 0.6}  # others: MARGIN above the baseline

_BY_TOPIC = {w for words in (ADJECTIVES, ADVERBS, VERBS, PREPOSITIONS) for w, x in words.items() if len(x.roots) > 1}
_SHE, _IT, _THEY = ("she", "her"), ("it",), ("they", "them")
_PRONOUNS = {noun.word: _SHE if noun.kind == "person" else _IT for noun in NOUNS.values()}
_PRONOUNS |= {noun.plural: _THEY for noun in NOUNS.values()}


def pairs(sentence: Sentence) -> dict[str, list[tuple[int, int]]]:
    """Who should look at whom: for each role, (query, key) pairs of words, counted from 0.

    >>> words = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> {role: some for role, some in pairs(words).items() if some}
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
    out["topic"] = [(i, name) for i, name in out["name"] if plain(sentence.words[i]) in _BY_TOPIC]
    return out


def nearest_fitting(sentence: Sentence, pronoun: int) -> int | None:
    """Place of the nearest noun before a pronoun that fits it in number and kind, from 0; None where there is none.

    >>> told = Sentence(tuple("the nurse met the dog and it slept .".split()), (2, 3, 0, 5, 3, 8, 8, 3, 3),
    ...                 tuple("det nsubj root det obj cc nsubj conj punct".split()),
    ...                 tuple("DET NOUN VERB DET NOUN CCONJ PRON VERB PUNCT".split()), (0, 0, 0, 0, 0, 0, 5, 0, 0))
    >>> nearest_fitting(told, 6)
    4
    """
    for i in range(pronoun - 1, -1, -1):
        if sentence.upos[i] in ("NOUN", "PROPN"):
            fitting = _SHE if sentence.upos[i] == "PROPN" else _PRONOUNS[plain(sentence.words[i])]
            if plain(sentence.words[pronoun]) in fitting:
                return i
    return None


@torch.no_grad()
def observe(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    measure: Callable[[Tensor, Tensor], Tensor],
    batch_size: int = 50,
) -> Tensor:
    """One number for every encoder head and word: (layer, head, word), the words of all sentences one after the other.

    ``measure(maps, words)`` gets the maps (B, head, query, key) of one layer and batch, and which of the tokens are
    words and neither EOS token nor padding (B, key); it returns (B, head, query). Raises ValueError for no sentences.

    >>> model, tokenizer = ht.load()
    >>> observe(model, tokenizer, ht.corpus("organism", limit=1), on_end_mark).shape
    torch.Size([6, 8, 19])
    """
    if not sentences:
        raise ValueError("no sentences came; write observe(model, tokenizer, corpus('organism', limit=100), looks)")
    words = torch.tensor([])

    def fold(_site: ht.Site, seen: object, before: list[Tensor] | None) -> list[Tensor]:
        return [*(before or []), measure(seen.maps, words).transpose(0, 1)[:, words]]

    with ht.record(model, want="maps", accumulate=fold, only=["encoder"]) as found:
        for start in range(0, len(sentences), batch_size):
            chosen = sentences[start : start + batch_size]
            batch = tokenizer([str(s) for s in chosen], return_tensors="pt", padding=True).to(model.device)
            lengths = torch.tensor([len(s.words) for s in chosen], device=model.device)
            words = torch.arange(batch.input_ids.shape[1], device=model.device) < lengths[:, None]
            model.get_encoder()(**batch)
    return torch.stack([torch.cat(found[site], dim=-1).cpu() for site in ht.sites(model)["encoder"]])


def looks(maps: Tensor, words: Tensor) -> Tensor:
    """The word with the greatest weight, from 0: maps (B, head, query, key) and words (B, key) to (B, head, query)."""
    return maps.masked_fill(~words[:, None, None], -1.0).argmax(-1)


def on_end_mark(maps: Tensor, words: Tensor) -> Tensor:
    """Weight on the EOS token, which no word needs: maps (B, head, query, key), words (B, key) to (B, head, query)."""
    end = words.sum(-1)[:, None, None, None].expand(*maps.shape[:-1], 1)
    return maps.gather(-1, end).squeeze(-1)


def evenness(maps: Tensor, words: Tensor) -> Tensor:
    """Entropy of the weights over words and EOS token, as a share of the greatest it could be: (B, head, query).

    >>> evenness(torch.full((1, 1, 4, 4), 0.25), torch.tensor([[True, True, True, False]])).unique()
    tensor([1.])
    """
    return torch.special.entr(maps).sum(-1) / (words.sum(-1) + 1.0).log()[:, None, None]


def wilson(share: pd.Series, n: pd.Series, level: float = 0.95) -> tuple[pd.Series, pd.Series]:
    """Ends of Wilson's interval of a share of ``n`` trials (Wilson 1927); it stays inside 0 and 1.

    >>> low, high = wilson(0.5, 100)
    >>> round(float(low), 3), round(float(high), 3)
    (0.404, 0.596)
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return np.clip((middle - half) / scale, 0, 1), np.clip((middle + half) / scale, 0, 1)  # rounding may step over


def _table(sentences: Sequence[Sentence]) -> pd.DataFrame:
    """One row a pair: role, word (number in the whole corpus), key, offset and the offset a simple rule would guess."""
    rows, start = [], 0
    for s in sentences:
        for role, some in pairs(s).items():
            rows += [(role, start + q, k, k - q, _guess(s, q) if role == "coreference" else None) for q, k in some]
        start += len(s.words)
    return pd.DataFrame(rows, columns=["role", "word", "key", "offset", "guess"])


def _guess(sentence: Sentence, pronoun: int) -> int:
    place = nearest_fitting(sentence, pronoun)
    return 0 if place is None else place - pronoun


def _baseline(pairs: pd.DataFrame, fitted: pd.DataFrame) -> pd.Series:
    """Share of pairs, by role, that the guess hits: the offset most frequent in ``fitted``, or the noun that fits."""
    usual = fitted.groupby("role").offset.agg(lambda offset: offset.mode()[0])
    guess = pairs.guess.astype(float).fillna(pairs.role.map(usual))
    return (pairs.offset == guess).groupby(pairs.role).mean()


def _scores(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], pairs: pd.DataFrame) -> pd.Series:
    """Share of looks that hit, by role and head."""
    seen = observe(model, tokenizer, sentences, looks)
    heads = pd.Index([f"{layer}.{head}" for layer in range(len(seen)) for head in range(seen.shape[1])], name="head")
    hit = (seen.flatten(0, 1)[:, torch.tensor(pairs.word)] == torch.tensor(pairs.key)).T
    return pd.DataFrame(hit.numpy(), columns=heads).groupby(pairs.role).mean().stack()


def roles(
    model: nn.Module,
    tokenizer: object,
    validation: Sequence[Sentence] | None = None,
    test: Sequence[Sentence] | None = None,
) -> pd.DataFrame:
    """Score every encoder head for every role: one row for each pair of them.

    Columns: ``role``, ``head`` ('5.1'); ``validation`` and ``score``, the shares of looks that hit in the validation
    and the test sentences (by default all 1,000 each); ``low`` and ``high``, Wilson's 95 % interval of ``score``;
    ``baseline``, the share in the test sentences of the offset most frequent in validation, for coreference that of
    the nearest noun that fits, and none for offsets; ``n``, test looks; ``found``, whether the head has the role:
    reaches its bar in the validation and again in the test sentences, in 50 looks of each or more.

    Raises ValueError for no sentences.

    >>> model, tokenizer = ht.load()
    >>> few = [ht.corpus("organism", split, limit=60) for split in ("validation", "test")]
    >>> best(roles(model, tokenizer, *few)).loc["offset +1", "head"]
    '5.3'
    """
    validation = ht.corpus("organism", "validation") if validation is None else validation
    test = ht.corpus("organism", "test") if test is None else test
    fitted, measured = _table(validation), _table(test)
    frame = _scores(model, tokenizer, validation, fitted).rename("validation").to_frame()
    frame = frame.join(_scores(model, tokenizer, test, measured).rename("score"), how="inner").reset_index()
    n = measured.groupby("role").size()
    frame["low"], frame["high"] = wilson(frame.score, frame.role.map(n))
    frame["baseline"], frame["n"] = frame.role.map(_baseline(measured, fitted)), frame.role.map(n)
    absolute = frame.role.map(_BARS)
    often = frame.role.map(fitted.groupby("role").size()).clip(upper=frame.n) >= FEWEST
    reached = frame.validation >= absolute.fillna(frame.role.map(_baseline(fitted, fitted)) + MARGIN)
    kept = frame.score >= absolute.fillna(frame.baseline + MARGIN)
    frame["found"] = often & reached & kept
    frame["baseline"] = frame.baseline.mask(frame.role.str.startswith("offset"))
    return frame


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of :func:`roles` with the head that does best in the validation sentences, one a role, by role."""
    return frame.loc[frame.groupby("role").validation.idxmax()].set_index("role")


def strong(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of :func:`roles` in which a head has the role and hits it nine times in ten in the validation set."""
    return frame[frame.found & (frame.validation >= STRONG)]
