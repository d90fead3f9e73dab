"""Batches for a model, and what each kind of attention in them is between: words and marks of one side or two."""

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log

import torch
from torch import Tensor, nn

from headtools.heads._devices import device_of
from headtools.roles._taxonomy.annotation import Gold, Words, gold
from headtools.roles._taxonomy.spans import Units, make_units, means, units_of_words
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align

MARKS = ("bos", "eos", "cls", "sep")


@dataclass(frozen=True)
class Side:
    """One kind of attention in one batch: units of queries and keys, and the words they stand for.

    ``sentences`` are those of the keys, ``gold`` is their annotation; in cross-attention they carry the alignment of
    the queries. ``vectors(first, last)`` gives the embeddings of the units of some sentences, (last - first, U, d), as
    narrow as they are (None: no content similarity).
    """

    kind: str
    sentences: Sequence[Sentence]
    gold: Gold
    queries: Units
    keys: Units
    words: Words
    vectors: Callable[[int, int], Tensor] | None = None

    @property
    def causal(self) -> bool:
        """Whether a query sees only itself and what came before."""
        return self.kind == "decoder"


def count_words(tokenizer: object, reference: Sequence[Sentence], frequency: Mapping[str, int] | None) -> Words:
    """Count words, for their ranks and rarity (``frequency``, or the words of ``reference``), and find the marks.

    Raises ValueError for a frequency that is no count.

    >>> from types import SimpleNamespace
    >>> words = count_words(SimpleNamespace(), [], {"the": 9, "dog": 2, "cat": 2})
    >>> [words.rank_of(word) for word in ("The", "dog", "cat", "gnu")]
    [0, 1, 1, 3]
    """
    count = dict(Counter(chain.from_iterable(s.words for s in reference)) if frequency is None else frequency)
    _refuse_shares(count)
    total = sum(count.values()) + len(count) + 1  # one more of each, and one for the unknown
    order = sorted((word for word in count if count[word]), key=lambda word: -count[word])
    numbers = [count[word] for word in order]
    first = {n: place for place, n in reversed([*enumerate(numbers)])}  # words of equal frequency have equal ranks
    marks: dict[str, int] = {}
    for name in MARKS:
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None and token not in marks.values():  # RoBERTa's start mark is also its [CLS]
            marks[name] = token
    rarity = {word: log(total / (n + 1)) for word, n in count.items()}
    other_case = {word.casefold(): word for word in reversed(order)}  # of several the most frequent
    return Words({word: first[count[word]] for word in order}, rarity, log(total), marks, other_case)


def _refuse_shares(count: Mapping[str, float]) -> None:
    for word, n in count.items():
        if not (n >= 0 and n % 1 == 0):
            raise ValueError(
                f"frequency[{word!r}] is {n!r}, and how often a word occurs is a whole number, 0 or more: "
                "write frequency=Counter(words), or multiply shares by the size of their corpus"
            )


def make_sides(
    model: nn.Module | None, tokenizer: object, sentences: Sequence[Sentence], kinds: Sequence[str],
    conventions: Conventions, words: Words, translated: bool,
) -> tuple[object, dict[str, Side]]:  # fmt: skip
    """A batch for the model, and what each kind of attention is between; without a model no embeddings."""
    batch, source = _ahead(*align(tokenizer, sentences))
    units = make_units(source, batch["attention_mask"], batch["input_ids"], conventions.level)
    known = gold(sentences, words)
    sides = {}
    for kind in [kind for kind in kinds if kind == "encoder" or (kind == "decoder" and not translated)]:
        sides[kind] = Side(kind, sentences, known, units, units, words, _vectors(model, batch["input_ids"], units))
    if translated and {"decoder", "cross"} & {*kinds}:
        given, target = _ahead(*align(tokenizer, [s.target for s in sentences]))
        ids, mask = given["input_ids"], given["attention_mask"]
        written = make_units(target, mask, ids, conventions.level)
        shifted = torch.cat([torch.full_like(target[:, :1], -1), target[:, :-1]], 1)
        inputs = _shifted(model, ids)
        batch["decoder_input_ids"], batch["decoder_attention_mask"] = inputs, mask
        read = make_units(shifted, mask, inputs, conventions.level)
        if "decoder" in kinds:
            told = [_bare(s.target) for s in sentences]
            vectors = _vectors(model, inputs, read)
            sides["decoder"] = Side("decoder", told, gold(told, words), read, read, words, vectors)
        if "cross" in kinds:
            queries = written if conventions.cross == "writes" else read
            sides["cross"] = Side("cross", sentences, known, queries, units, words)
    return batch, sides


def word_sides(sentences: Sequence[Sentence], kinds: Sequence[str], words: Words, translated: bool) -> dict[str, Side]:
    """What each kind of attention is between, were there nothing but words: enough to count distances between them.

    Marks stand before the first word and behind the last, so that between two words there are as many units as words.
    """
    known, own = gold(sentences, words), units_of_words([len(s.words) for s in sentences])
    sides = {kind: Side(kind, sentences, known, own, own, words)
             for kind in kinds if kind == "encoder" or (kind == "decoder" and not translated)}  # fmt: skip
    if translated and "cross" in kinds:
        written = units_of_words([len(s.target) for s in sentences])
        sides["cross"] = Side("cross", sentences, known, written, own, words)
    return sides


def _ahead(batch: MutableMapping[str, Tensor], words: Tensor) -> tuple[MutableMapping[str, Tensor], Tensor]:
    """Move all padding behind the text.

    A model that counts places from the left then reads a sentence at the same places, whatever stands beside it in the
    batch and whichever side the tokenizer pads.
    """
    mask = batch["attention_mask"].bool()
    if not (mask[:, 1:] & ~mask[:, :-1]).any():
        return batch, words
    order = mask.long().argsort(dim=1, descending=True, stable=True)
    for name, values in batch.items():
        if values.shape == order.shape:
            batch[name] = values.gather(1, order)
    return batch, words.gather(1, order)


def _shifted(model: nn.Module | None, ids: Tensor) -> Tensor:
    """What the decoder reads so that it writes ``ids``: the start mark, then all but the last."""
    start = 0 if model is None else model.config.decoder_start_token_id
    if start is None:
        start = model.config.pad_token_id
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _bare(words: tuple[str, ...]) -> Sentence:
    """Target words as a sentence without grammar."""
    n = len(words)
    return Sentence(words, (0,) * n, ("root",) * n, ("_",) * n, (0,) * n)


def _vectors(model: nn.Module | None, ids: Tensor, units: Units) -> Callable[[int, int], Tensor] | None:
    table = None if model is None else model.get_input_embeddings()
    if table is None:
        return None

    def vectors(first: int, last: int) -> Tensor:
        some = units.part(first, last)
        return means(table(ids[first:last, : some.of_token.shape[1]].to(device_of(model))).cpu(), some)

    return vectors


def cut(batch: Mapping[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
    """Some of a batch's rows, as narrow as their text: padding stands behind it.

    >>> ids, mask = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> cut({"input_ids": ids, "attention_mask": mask}, 1, 2)["input_ids"]
    tensor([[8, 9]])
    """
    out = {}
    for name, value in batch.items():
        mask = batch["decoder_attention_mask" if name.startswith("decoder_") else "attention_mask"]
        wide = value.shape == mask.shape
        out[name] = value[first:last, : int(mask[first:last].sum(1).max())] if wide else value[first:last]
    return out


def run(model: nn.Module, batch: Mapping[str, Tensor], encoder_only: bool) -> None:
    """Run the model, or only the encoder of a model that has a decoder too."""
    if encoder_only and getattr(model.config, "is_encoder_decoder", False):
        model.get_encoder()(**batch)
    else:
        model(**batch)
