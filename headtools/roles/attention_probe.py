"""Clark's attention probe: where is a word's syntactic head, to judge by all attention maps together?

The probe gives each map two weights, one for looks from the candidate to the word and one for looks back, and the
candidate with the greatest sum is taken for the head (Clark et al. 2019, arXiv:1906.04341, section 5, equation without
a number): p(i | j) ∝ exp Σ_k (w_k A^k_ij + u_k A^k_ji), i the candidate, j the word, k all heads. Its score, the share
of words whose head is right (UAS, unlabelled attachment score), stands beside rules that need no model.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads._devices import device_of
from headtools.heads._precision import without_autocast
from headtools.heads.record import record
from headtools.roles.controls import untrained as untrained_twin
from headtools.roles.probing import share
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align, to_words

PENALTIES = (1e-2, 1e-3, 1e-4)
METHODS = ("attention", "untrained", "distance", "offset by upos", "best offset", "right-branching")
FARTHEST = 10  # words; beyond, the distance probe tells only before from after
MOST_BYTES = 2 * 2**30


@dataclass(frozen=True, eq=False)
class AttentionProbe:
    """What came of it.

    scores     frame, one row a method: ``method``, ``uas``, ``low``, ``high`` (shares, 95 % bootstrap interval over
               sentences), ``n`` words of test
    weights    frame, one row a head of the trained model: ``kind``, ``layer``, ``head``, ``down`` (w: the weight of
               looks from the candidate to the word) and ``up`` (u: of looks from the word to the candidate);
               ``pull``, the greater of |w| and |u| times the standard deviation of its looks over the pairs of train:
               a head whose maps hardly differ needs a great weight to say a little
    penalty    what each probe was held back with, by method
    """

    scores: pd.DataFrame
    weights: pd.DataFrame
    penalty: dict[str, float]


def attention_probe(
    model: nn.Module,
    tokenizer: object,
    train: Sequence[Sentence],
    test: Sequence[Sentence],
    *,
    untrained: bool = True,
    penalties: Sequence[float] = PENALTIES,
    folds: int = 3,
    seed: int = 0,
    batch_size: int = 32,
) -> AttentionProbe:
    """Fit the attention probe on some sentences, and score it on others beside the rules.

    Asked about is every word but roots and punctuation; the candidates are all other words of its sentence. Maps are
    brought from tokens to words as Clark et al. do (``headtools.to_words``). Of an encoder-decoder
    the encoder is read. The weights minimise the mean of −log p plus penalty / 2 times their squares, with the penalty
    of ``penalties`` (the most held back first) that does best in cross-validation by sentence in ``train``. Methods:

    "attention"        the probe
    "untrained"        the probe on the model's untrained twin (with ``untrained``)
    "distance"         the probe with distances in place of maps: each from −10 to 10 words has a weight
    "offset by upos"   the candidate at the offset most frequent for the word's part of speech
    "best offset"      the candidate at the offset most frequent of all
    "right-branching"  the next word

    A rule that points out of the sentence is wrong. Takes 8 bytes a head and pair of words, 1.5 MB for ten sentences
    of 20 words and 48 heads; beyond 2 GiB it is refused. Raises ValueError for that, and for a sentence in both
    train and test.

    >>> import headtools as ht
    >>> few = [ht.corpus("organism", split, limit=30) for split in ("validation", "test")]
    >>> scores = attention_probe(*ht.load(), *few, untrained=False).scores.set_index("method").uas
    >>> bool(scores["attention"] > scores["right-branching"])
    True
    """
    if {s.words for s in train} & {s.words for s in test}:
        raise ValueError("sentences are in train and in test; use two splits, e.g. corpus(name, 'train') and 'test'")
    fit, asked = _Pairs(train, "train"), _Pairs(test, "test")
    scores = {
        "right-branching": asked.at(np.full(len(asked.word), 1)),
        "best offset": asked.at(np.full(len(asked.word), _mode(fit.gold - fit.word))),
        "offset by upos": asked.at(_offsets(fit, asked)),
    }
    inputs = {"distance": (_distances(fit), _distances(asked))}
    names: list[tuple] = []
    models = {"attention": model} | ({"untrained": untrained_twin(model, seed)} if untrained else {})
    for name, one in models.items():
        heads, x = _looks(one, tokenizer, train, fit, batch_size)
        inputs[name] = x, _looks(one, tokenizer, test, asked, batch_size)[1]
        names = names or heads
    weights, penalty = {}, {}
    for name, (x, z) in inputs.items():
        penalty[name] = _choose(fit, x, penalties, folds)
        weights[name] = fit.solve(x, penalty[name])
        scores[name] = asked.best(_product(z, weights[name])) == asked.place
    rows = [
        (name, *(float(v) for v in share(torch.as_tensor(scores[name]).double(), asked.sentence)), len(asked.word))
        for name in METHODS
        if name in scores
    ]
    both = weights["attention"].view(2, -1)
    pull = (both * inputs["attention"][0].std(0).view(2, -1)).abs().amax(0)
    return AttentionProbe(
        pd.DataFrame(rows, columns=["method", "uas", "low", "high", "n"]),
        pd.DataFrame([(*h, w, u) for h, w, u in zip(names, *both.tolist(), strict=True)],
                     columns=["kind", "layer", "head", "down", "up"]).assign(pull=pull.numpy()),
        penalty,
    )  # fmt: skip


@without_autocast
def _product(x: Tensor, weights: Tensor) -> Tensor:
    return x @ weights


class _Pairs:
    """The words asked about and their candidates, flat: pair p asks whether ``candidate[p]`` heads word ``row[p]``."""

    def __init__(self, sentences: Sequence[Sentence], name: str) -> None:
        asked = [
            (i, j, s.heads[j] - 1, len(s.words), s.upos[j])
            for i, s in enumerate(sentences)
            for j in range(len(s.words))
            if s.heads[j] and s.relations[j] != "punct"
        ]
        if len({a[0] for a in asked}) < 2:
            raise ValueError(f"{name} has {len(asked)} words with a head; needed: two sentences with some, or more")
        number, self.word, self.gold, length, upos = map(np.array, zip(*asked, strict=True))
        self.whole = number  # the sentence of each word asked about, among all
        self.sentence, self.length, self.upos = np.unique(number, return_inverse=True)[1], length, upos
        self.row = torch.from_numpy(np.repeat(np.arange(len(asked)), length - 1))
        # candidates in order, the word itself left out: its place is what comes behind it, one lower
        column = np.concatenate([np.arange(n - 1) for n in length])
        self.column = torch.from_numpy(column)
        self.candidate = column + (column >= self.word[self.row])
        self.place = torch.from_numpy(self.gold - (self.gold > self.word))

    def at(self, offset: np.ndarray) -> np.ndarray:
        """Which words have their head at the given offsets."""
        return self.word + offset == self.gold

    def table(self, flat: Tensor) -> Tensor:
        """One row a word, one column a candidate, −∞ where there is none."""
        out = torch.full((len(self.word), int(self.length.max()) - 1), -torch.inf)
        out[self.row, self.column] = flat
        return out

    def best(self, flat: Tensor) -> Tensor:
        """Place of each word's best candidate."""
        return self.table(flat).argmax(1)

    def loss(self, flat: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of −log p of the gold candidates of some words, and its derivative by the logits of all pairs."""
        log = self.table(flat).log_softmax(1)
        gold = log.gather(1, self.place[:, None])[:, 0]
        slope = log.exp()
        slope[torch.arange(len(slope)), self.place] -= 1
        slope = (slope * rows[:, None] / rows.sum())[self.row, self.column]
        return -(gold * rows).sum() / rows.sum(), slope

    @without_autocast
    def solve(self, x: Tensor, penalty: float, rows: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """Weights (features,) of the probe on x (pair, features), fitted to some of the words (None: to all)."""
        rows = torch.ones(len(self.word)) if rows is None else rows.float()
        weights = torch.zeros(x.shape[1]) if start is None else start.clone()
        solver = torch.optim.LBFGS([weights], max_iter=60, history_size=20, line_search_fn="strong_wolfe",
                                   tolerance_grad=1e-5, tolerance_change=1e-7)  # fmt: skip

        def closure() -> Tensor:
            loss, slope = self.loss(x @ weights, rows)
            weights.grad = slope @ x + penalty * weights
            return loss + penalty / 2 * weights.square().sum()

        solver.step(closure)
        return weights


def _choose(fit: _Pairs, x: Tensor, penalties: Sequence[float], folds: int) -> float:
    """The penalty that finds most heads in the parts of ``fit`` left out, each sentence in one part."""
    if len(penalties) == 1:
        return penalties[0]
    part = torch.from_numpy(fit.sentence % folds)
    hits = np.zeros(len(penalties))
    for fold in part.unique():
        weights, out = None, part == fold
        for i, penalty in enumerate(penalties):
            weights = fit.solve(x, penalty, ~out, weights)
            hits[i] += int((fit.best(_product(x, weights)) == fit.place)[out].sum())
    return penalties[int(hits.argmax())]


@torch.no_grad()
def _looks(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], pairs: _Pairs, batch_size: int
) -> tuple[list[tuple], Tensor]:
    """Names of the heads, and the features of the pairs: (pair, 2 · heads), looks down first, then looks up."""
    reader = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    words, batches, heads = torch.tensor([]), [], []
    row_sentence = torch.from_numpy(pairs.whole)[pairs.row]
    word, candidate = torch.from_numpy(pairs.word)[pairs.row], torch.from_numpy(pairs.candidate)

    def fold(_site: object, seen: object, _before: object) -> Tensor:
        return to_words(seen.maps, words)

    for start in range(0, len(sentences), batch_size):
        batch, words = align(tokenizer, sentences[start : start + batch_size], device=device_of(model))
        with record(model, want="maps", accumulate=fold) as found:
            reader(**batch)
        maps = torch.cat([found[key] for key in found], 1).permute(0, 2, 3, 1).cpu()  # (B, query, key, head)
        heads = [(" ".join(key[:-1]), key[-1], h) for key in found for h in range(found[key].shape[1])]
        if len(pairs.row) * len(heads) * 8 > MOST_BYTES:
            raise ValueError(
                f"{len(pairs.row):,} pairs of words and {len(heads)} heads take over {MOST_BYTES / 2**30:.0f} GiB; "
                "give fewer sentences"
            )
        here = (row_sentence >= start) & (row_sentence < start + batch_size)
        b, i, j = row_sentence[here] - start, candidate[here], word[here]
        batches.append(torch.cat([maps[b, i, j], maps[b, j, i]], -1))
    return heads, torch.cat(batches)


def _distances(pairs: _Pairs) -> Tensor:
    """One feature for each distance from word to candidate: (pair, 2 · FARTHEST + 1)."""
    distance = pairs.candidate - pairs.word[pairs.row]
    return torch.eye(2 * FARTHEST + 1)[np.clip(distance, -FARTHEST, FARTHEST) + FARTHEST]


def _offsets(fit: _Pairs, asked: _Pairs) -> np.ndarray:
    """For each word asked about, the offset of the head most frequent for its part of speech."""
    usual = {upos: _mode((fit.gold - fit.word)[fit.upos == upos]) for upos in np.unique(fit.upos)}
    every = _mode(fit.gold - fit.word)
    return np.array([usual.get(upos, every) for upos in asked.upos])


def _mode(values: np.ndarray) -> int:
    """The most frequent value; of equals, the first met."""
    return Counter(values.tolist()).most_common(1)[0][0]
