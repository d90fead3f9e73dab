"""Clark's attention probe: which word is the syntactic head of a word, by all attention maps together?

p(i | j) ∝ exp Σ_k (w_k A^k_ij + u_k A^k_ji), i the candidate, j the word, k all heads (Clark et al. 2019,
arXiv:1906.04341, section 5). The weights minimise the mean of −log p plus penalty / 2 times their squares, with the
penalty that does best in cross-validation by sentence. UAS is the fraction of words whose head is right.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads._devices import device_of, without_autocast
from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.record import record
from headtools.heads.sites import sites
from headtools.heads.verify import check_padding_verified, verify_once
from headtools.roles.controls import untrained
from headtools.roles.probing import FOLDS, check_splits, share
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align, to_words

PENALTIES = (1e-2, 1e-3, 1e-4)  # the strongest first
BATCH_SIZE = 32
METHODS = (
    "attention",  # the probe
    "untrained",  # the probe on the model's untrained twin
    "distance",  # the probe with distances in place of maps: each from −10 to 10 words has a weight
    "offset by upos",  # the candidate at the offset most frequent for the word's part of speech
    "best offset",  # the candidate at the offset most frequent of all
    "right-branching",  # the next word
)
MAX_DISTANCE = 10  # words; beyond, the distance probe distinguishes only before from after
MAX_BYTES = 2 * 2**30


class AttentionProbe(NamedTuple):
    """Scores and weights of the attention probe.

    scores     one row a method: ``method``, ``uas``, ``low``, ``high`` (fractions, 95 % bootstrap interval over
               sentences), ``n`` words of test
    weights    one row a head of the trained model: ``kind``, ``layer``, ``head``, ``down`` (w, of attention from the
               candidate to the word), ``up`` (u, from the word to the candidate), ``effective_weight``, the greater of
               |w| and |u| times the standard deviation of that attention over the pairs of train
    """

    scores: pd.DataFrame
    weights: pd.DataFrame


def attention_probe(
    model: nn.Module, tokenizer: object, train: Sequence[Sentence], test: Sequence[Sentence]
) -> AttentionProbe:
    """Fit the attention probe on the sentences of ``train``, and score it on those of ``test`` beside ``METHODS``.

    The head of every word but roots and punctuation is predicted; the candidates are all other words of its sentence,
    and a rule that points outside it is wrong. Of an encoder-decoder the encoder is read. Takes 8 bytes a head and pair
    of words. Raises ValueError beyond 2 GiB, and for a sentence in both train and test.

    >>> import headtools as ht
    >>> few = [ht.corpus("organism", split, limit=30) for split in ("validation", "test")]
    >>> uas = attention_probe(*ht.load(), *few).scores.set_index("method").uas
    >>> bool(uas["attention"] > uas["right-branching"])
    True
    """
    check_splits(train, test)
    verify_once(model, chosen=sites(model))
    train_pairs, test_pairs = _Pairs(train, "train"), _Pairs(test, "test")
    n_test = len(test_pairs.word)
    features = {"distance": (_distance_features(train_pairs), _distance_features(test_pairs))}
    for method, probed in (("attention", model), ("untrained", untrained(model))):
        heads, x_train = _attention_features(probed, tokenizer, train, train_pairs)
        features[method] = x_train, _attention_features(probed, tokenizer, test, test_pairs)[1]
    correct = {
        "right-branching": test_pairs.head_at(np.full(n_test, 1)),
        "best offset": test_pairs.head_at(np.full(n_test, _mode(train_pairs.head - train_pairs.word))),
        "offset by upos": test_pairs.head_at(_offsets_by_upos(train_pairs, test_pairs)),
    }
    weights = {}
    for method, (x_train, x_test) in features.items():
        weights[method] = train_pairs.fit(x_train, _select_penalty(train_pairs, x_train))
        correct[method] = (test_pairs.predict(x_test, weights[method]) == test_pairs.head_candidate).numpy()
    rows = []
    for method in METHODS:
        uas = share(torch.from_numpy(correct[method]).double(), test_pairs.sentence)
        rows.append((method, *map(float, uas), n_test))
    down_up = weights["attention"].view(2, -1)  # w and u of each head
    effective_weight = (down_up * features["attention"][0].std(0).view(2, -1)).abs().amax(0)
    of_heads = pd.DataFrame(heads, columns=["kind", "layer", "head"])
    return AttentionProbe(
        pd.DataFrame(rows, columns=["method", "uas", "low", "high", "n"]),
        of_heads.assign(down=down_up[0].tolist(), up=down_up[1].tolist(), effective_weight=effective_weight.numpy()),
    )


class _Pairs:
    """The N words whose heads are predicted, and P pairs of such a word with a candidate, which is any other word.

    word, head, length, upos   (N,) the word and its head, positions in a sentence of this length; part of speech
    sentence_index             (N,) the word's sentence
    sentence                   (N,) the same, counting only sentences with such words
    row, column                (P,) the pair's word, and which of its candidates
    candidate                  (P,) position of the candidate
    head_candidate             (N,) which of the candidates is the head
    """

    def __init__(self, sentences: Sequence[Sentence], name: str) -> None:
        predicted = [
            (i, j, s.heads[j] - 1, len(s.words), s.upos[j])
            for i, s in enumerate(sentences)
            for j in range(len(s.words))
            if s.heads[j] and s.relations[j] != "punct"
        ]
        if len({i for i, *_ in predicted}) < 2:
            raise ValueError(f"{name} has {len(predicted)} words with a head; expected some in two sentences or more")
        self.sentence_index, self.word, self.head, self.length, self.upos = map(np.array, zip(*predicted, strict=True))
        self.sentence = np.unique(self.sentence_index, return_inverse=True)[1]
        self.row = torch.from_numpy(np.repeat(np.arange(len(predicted)), self.length - 1))
        # Candidates are in the order of the sentence without the word itself: words after it are one column earlier.
        column = np.concatenate([np.arange(n - 1) for n in self.length])
        self.column = torch.from_numpy(column)
        self.candidate = column + (column >= self.word[self.row])
        self.head_candidate = torch.from_numpy(self.head - (self.head > self.word))

    def head_at(self, offset: np.ndarray) -> np.ndarray:
        """Which words have their head at the given offsets, (N,)."""
        return self.word + offset == self.head

    def logits(self, by_pair: Tensor) -> Tensor:
        """Numbers by pair (P,) as one row a word and one column a candidate, −∞ where there is none."""
        out = torch.full((len(self.word), int(self.length.max()) - 1), -torch.inf)
        out[self.row, self.column] = by_pair
        return out

    @without_autocast
    def predict(self, x: Tensor, weights: Tensor) -> Tensor:
        """Which of its candidates is each word's best, (N,), by x (pair, features) and weights (features,)."""
        return self.logits(x @ weights).argmax(1)

    def loss(self, by_pair: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of −log p of the heads of the ``words`` (N,) of weight 1, and its gradient by the logits, (P,)."""
        log_p = self.logits(by_pair).log_softmax(1)
        head_log_p = log_p.gather(1, self.head_candidate[:, None])[:, 0]
        gradient = log_p.exp()  # of −log softmax: p − 1 for the head, p for the others
        gradient[torch.arange(len(gradient)), self.head_candidate] -= 1
        gradient = (gradient * words[:, None] / words.sum())[self.row, self.column]
        return -(head_log_p * words).sum() / words.sum(), gradient

    @without_autocast
    def fit(self, x: Tensor, penalty: float, words: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """Weights (features,) of the probe on x (pair, features), fitted to the ``words`` of a mask (None: to all)."""
        words = torch.ones(len(self.word)) if words is None else words.float()
        weights = torch.zeros(x.shape[1]) if start is None else start.clone()
        solver = torch.optim.LBFGS(
            [weights],
            max_iter=60,
            history_size=20,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-5,
            tolerance_change=1e-7,
        )

        def closure() -> Tensor:
            # x @ weights: Σ_k (w_k A^k_ij + u_k A^k_ji). The objective is convex, so the start does not matter.
            loss, gradient = self.loss(x @ weights, words)
            weights.grad = gradient @ x + penalty * weights
            return loss + penalty / 2 * weights.square().sum()

        solver.step(closure)
        return weights


def _select_penalty(pairs: _Pairs, x: Tensor) -> float:
    """The penalty that predicts most heads in the held-out folds, each sentence in one fold."""
    fold = torch.from_numpy(pairs.sentence % FOLDS)
    hits = np.zeros(len(PENALTIES))
    for f in fold.unique():
        weights, held_out = None, fold == f
        for i, penalty in enumerate(PENALTIES):  # each fit starts from the weights of the previous, stronger penalty
            weights = pairs.fit(x, penalty, ~held_out, weights)
            hits[i] += int((pairs.predict(x, weights) == pairs.head_candidate)[held_out].sum())
    return PENALTIES[int(hits.argmax())]


@torch.no_grad()
def _attention_features(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], pairs: _Pairs
) -> tuple[list[tuple], Tensor]:
    """The heads, and the features of the pairs: (pair, 2 · heads), attention down first, then up."""
    reader = model.get_encoder() if is_encoder_decoder(model) else model
    words, features, heads = torch.tensor([]), [], []
    pair_sentence = torch.from_numpy(pairs.sentence_index)[pairs.row]
    word, candidate = torch.from_numpy(pairs.word)[pairs.row], torch.from_numpy(pairs.candidate)

    def maps_of_words(_site: object, captured: object, _previous: object) -> Tensor:
        return to_words(captured.maps, words)  # of the batch that runs

    for start in range(0, len(sentences), BATCH_SIZE):
        batch, words = align(tokenizer, sentences[start : start + BATCH_SIZE], device=device_of(model))
        check_padding_verified(model, batch)
        with record(model, want="maps", accumulate=maps_of_words) as recorded:
            reader(**batch)
        maps = torch.cat([recorded[key] for key in recorded], 1).permute(0, 2, 3, 1).cpu()  # (B, query, key, head)
        heads = [(" ".join(key[:-1]), key[-1], head) for key in recorded for head in range(recorded[key].shape[1])]
        if len(pairs.row) * len(heads) * 8 > MAX_BYTES:
            raise ValueError(
                f"{len(pairs.row):,} pairs of words and {len(heads)} heads take over 2 GiB; give fewer sentences"
            )
        in_batch = (pair_sentence >= start) & (pair_sentence < start + BATCH_SIZE)
        b, i, j = pair_sentence[in_batch] - start, candidate[in_batch], word[in_batch]
        features.append(torch.cat([maps[b, i, j], maps[b, j, i]], -1))  # A_ij and A_ji, in the letters of the equation
    return heads, torch.cat(features)


def _distance_features(pairs: _Pairs) -> Tensor:
    """One feature for each distance from word to candidate, 0 or 1: (pair, 2 · MAX_DISTANCE + 1)."""
    distance = pairs.candidate - pairs.word[pairs.row]
    return torch.eye(2 * MAX_DISTANCE + 1)[np.clip(distance, -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE]


def _offsets_by_upos(train: _Pairs, test: _Pairs) -> np.ndarray:
    """For each word of ``test``, the offset of the head that is most frequent for its part of speech in ``train``."""
    offset = train.head - train.word
    by_upos = {upos: _mode(offset[train.upos == upos]) for upos in np.unique(train.upos)}
    overall = _mode(offset)
    return np.array([by_upos.get(upos, overall) for upos in test.upos])


def _mode(values: np.ndarray) -> int:
    """The most frequent value; of equally frequent ones, that which occurs first."""
    return Counter(values.tolist()).most_common(1)[0][0]
