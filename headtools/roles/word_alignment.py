"""From tokens to words: which word each token of a batch belongs to, and attention maps between words.

A tokenizer cuts a word into pieces, and adds marks of its own. Gold annotation speaks of words, a map of tokens:
:func:`align` tells which token belongs to which word, for any fast tokenizer, and :func:`to_words` folds the maps.

>>> from headtools.organism.load import load
>>> model, tokenizer = load()
>>> batch, words = align(tokenizer, [("the", "dog", "slept", "."), ("it", "slept", ".")])
>>> words
tensor([[ 0,  1,  2,  3, -1],
        [ 0,  1,  2, -1, -1]])
>>> maps = model.get_encoder()(**batch, output_attentions=True).attentions[5]
>>> to_words(maps, words).shape  # 4 words look at 4 words, and at all the rest together
torch.Size([2, 8, 4, 5])
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headtools.heads._precision import without_autocast
from headtools.roles.sentence import Sentence

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

NONE = -1  # the word of a token that belongs to none: EOS token, [CLS], padding


class Aligned(NamedTuple):
    """A batch and its words.

    batch   what the model takes, as tensors (B, T): input_ids, attention_mask, and what else the tokenizer gives
    words   (B, T), for each token the number of its word in the sentence, from 0; −1 for marks and padding
    """

    batch: "BatchEncoding"
    words: Tensor


def align(
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[Sentence | Sequence[str]],
    *,
    longest: int | None = None,
    device: torch.device | str | None = None,
) -> Aligned:
    """Tokenize sentences whose words are known, and tell for each token its word.

    ``sentences`` are Sentences, or sequences of words; each becomes a text with one space between its words, so that
    the model reads what it would read of plain text. (A tokenizer that is handed words one by one leaves the spaces
    out, unless it was made for that: GPT-2 then reads 'thedogslept'.) A token belongs to the word whose characters it
    covers; one that covers a space alone, to the word behind it. ``longest`` is the greatest number of tokens a
    sentence may have, marks included (None: the tokenizer's ``model_max_length``). Padding goes to the side the
    tokenizer pads; ``device`` is where the tensors go. Returns ``(batch, words)``, see :class:`Aligned`.

    Raises TypeError for a tokenizer that is not fast, since only those tell a token's place in the text, and for a
    sentence that is a plain string. Raises ValueError for no sentences, a sentence without words, a word that gives no
    token, a sentence that would be cut off, a token that covers two words, and sentences of unlike lengths where there
    is no token to pad with.

    >>> from headtools.organism.load import load
    >>> align(load()[1], [("the", "dog")]).words
    tensor([[ 0,  1, -1]])
    """
    texts = _texts(tokenizer, sentences)
    batch = tokenizer(
        [" ".join(words) for words in texts], padding=tokenizer.pad_token is not None, truncation=False,
        return_attention_mask=True, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False,
    )  # fmt: skip
    places, marks = batch.pop("offset_mapping"), batch.pop("special_tokens_mask")
    longest = tokenizer.model_max_length if longest is None else longest
    rows = []
    for i, (words, mask) in enumerate(zip(texts, batch["attention_mask"], strict=True)):
        rows.append(_row(f"sentences[{i}]", words, places[i], marks[i]))
        _refuse_cut(f"sentences[{i}]", words, [w for w, real in zip(rows[i], mask, strict=True) if real], longest)
    if len(set(map(len, rows))) > 1:
        raise ValueError(
            "the sentences have unlike numbers of tokens, and the tokenizer has no token to pad with; write "
            "tokenizer.pad_token = tokenizer.eos_token (padding is masked, so any token will do)"
        )
    return Aligned(batch.convert_to_tensors("pt").to(device or "cpu"), torch.tensor(rows, device=device))


def _texts(tokenizer: object, sentences: Sequence[Sentence | Sequence[str]]) -> list[tuple[str, ...]]:
    """The words of each sentence; refuses what has none, or cannot be split into any."""
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"{type(tokenizer).__name__} came, a fast tokenizer is needed, which tells where in the text each token "
            "stands; write AutoTokenizer.from_pretrained(name), and see that tokenizer.is_fast is True"
        )
    if isinstance(sentences, Sentence | str):
        raise TypeError("one sentence came, a list of them is needed; write align(tokenizer, [sentence])")
    if not len(sentences):
        raise ValueError("no sentences came; write align(tokenizer, corpus('english', limit=10))")
    out = []
    for i, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise TypeError(f"sentences[{i}] is a string, its words are needed; write {sentence[:40]!r}.split()")
        words = tuple(sentence.words if isinstance(sentence, Sentence) else sentence)
        if not words:
            raise ValueError(f"sentences[{i}] has no words; leave it out")
        for w, word in enumerate(words):
            if not word.strip():
                raise ValueError(f"sentences[{i}], word {w} (counted from 0) is {word!r}: nothing to tokenize")
        out.append(words)
    return out


def _row(where: str, words: tuple[str, ...], places: list[tuple[int, int]], marks: list[int]) -> list[int]:
    """The word of each token of one sentence; ``places`` are the (start, end) of each token in the text."""
    owner: list[int] = []  # of each character of the text: the number of its word,
    behind: list[int] = []  # and where it is a space between words, of the word behind it
    for w, word in enumerate(words):
        owner += [NONE] * (w > 0) + [w] * len(word)
        behind += [w] * (len(word) + (w > 0))
    row, seen = [], set()
    for (start, end), mark in zip(places, marks, strict=True):
        if not mark and start < end <= len(owner) and owner[start] == owner[end - 1] != NONE:
            row.append(owner[start])  # within one word, as nearly every token is
            seen.add(owner[start])
            continue
        covered = [] if mark else sorted({*owner[start:end]} - {NONE})
        if len(covered) > 1:
            raise ValueError(
                f"{where}: one token covers the words {' and '.join(repr(words[w]) for w in covered)} (numbers "
                f"{covered}, from 0), and so belongs to neither; needed: a tokenizer that keeps words apart"
            )
        seen.update(covered)
        row.append(NONE if mark else covered[0] if covered else behind[min(start, len(behind) - 1)])
    for w, word in enumerate(words):
        if w not in seen:
            raise ValueError(
                f"{where}: the tokenizer makes no token of word {w} (from 0), {word!r}; leave out the word or the "
                f"sentence: {' '.join(words)[:80]!r}"
            )
    return row


def _refuse_cut(where: str, words: tuple[str, ...], row: list[int], longest: int) -> None:
    """Refuse a sentence of more tokens than ``longest``, which would lose its last words."""
    if len(row) > longest:
        own = [w for w in row if w != NONE]
        first = own[max(0, longest - len(row) + len(own))]
        raise ValueError(
            f"{where} has {len(row)} tokens, and {longest} is the most, so that it would be cut off at word {first} "
            f"(from 0), {words[first]!r}; leave such long sentences out, or write longest={len(row)} if the model "
            "reads as many"
        )


@without_autocast
def to_words(maps: Tensor, words: Tensor, keys: Tensor | None = None) -> Tensor:
    """Attention maps between words: weights *to* a word's pieces are summed, those *from* its pieces averaged.

    ``maps`` (B, head, query, key) are maps of tokens and ``words`` (B, query) the tokens' words as :func:`align` gives
    them; ``keys`` (B, key) are the words of the other side in cross-attention (None: the same tokens). Returns float32
    (B, head, W, V + 1), W and V the greatest number of words among queries and keys: the weight from word to word, and
    in the last column all that went to no word: to EOS tokens, [CLS], padding. So the row of a word still sums to 1,
    and ``[..., :-1]`` are the words alone. The rows behind the last word of a shorter sentence are 0.

    The rule is that of Clark et al. 2019 (arXiv:1906.04341), section 4.1; they, too, take the mean and the sum.

    Raises ValueError where the shapes do not go together, or a batch has no words.

    >>> maps = torch.tensor([[[[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]]]])  # play ##ing [SEP]
    >>> to_words(maps, torch.tensor([[0, 0, -1]]))
    tensor([[[[0.7250, 0.2750]]]])
    """
    keys = words if keys is None else keys
    if maps.dim() != 4 or words.shape != maps.shape[:3:2] or keys.shape != (len(maps), maps.shape[-1]):
        raise ValueError(
            f"maps {tuple(maps.shape)} came with words {tuple(words.shape)} and keys {tuple(keys.shape)}; needed: maps "
            "(B, head, query, key), words (B, query), keys (B, key). Of the same batch: batch, words = align(...)"
        )
    to, fro = _members(keys, maps), _members(words, maps)[..., :-1]
    fro = fro / fro.sum(1, keepdim=True).clamp_min(1)
    return fro.transpose(1, 2)[:, None] @ (maps.float() @ to[:, None])


def _members(words: Tensor, like: Tensor) -> Tensor:
    """Which token belongs to which word, as 0 and 1: (B, T, W + 1); what belongs to no word is in the last column."""
    n = int(words.max()) + 1
    if n < 1:
        raise ValueError(f"words {tuple(words.shape)} hold no word (−1 is none); needed: the words that align() gives")
    column = torch.where(words < 0, n, words).to(like.device)
    return torch.nn.functional.one_hot(column, n + 1).float()
