"""From tokens to words: which word each token of a batch belongs to, and attention maps between words.

>>> from headtools.organism.load import load
>>> model, tokenizer = load()
>>> batch, words = align(tokenizer, [("the", "dog", "slept", "."), ("it", "slept", ".")])
>>> maps = model.get_encoder()(**batch, output_attentions=True).attentions[5]
>>> to_words(maps, words).shape  # 4 words attend to 4 words, and to all other tokens together
torch.Size([2, 8, 4, 5])
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headtools.roles.sentence import Sentence
from headtools.roles.spans import between_groups

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

NONE = -1  # the word of a token that belongs to none: EOS token, [CLS], padding


class Aligned(NamedTuple):
    """A batch and its words.

    batch   what the model takes, as tensors (B, T): input_ids, attention_mask, and what else the tokenizer gives
    words   (B, T), for each token the index of its word in the sentence; −1 for special tokens and padding
    """

    batch: "BatchEncoding"
    words: Tensor


def align(
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[Sentence | Sequence[str]],
    *,
    padding_side: str | None = None,
    device: torch.device | str | None = None,
) -> Aligned:
    """Tokenize sentences whose words are known, and return the word of each token: ``(batch, words)``.

    ``sentences`` are Sentences, or sequences of words; each becomes a text with one space between its words, so that
    the model reads it as plain text. (Given a list of words, GPT-2's tokenizer leaves the spaces out: 'thedogslept'.) A
    token belongs to the word whose characters it covers; one that covers only a space, to the next word.
    ``padding_side`` is "left" or "right" (None: the tokenizer's); ``device`` is where the tensors go.

    Raises TypeError for a tokenizer that is not fast (only those know the offsets of tokens) and for a sentence that is
    a plain string; ValueError for nothing to tokenize, a word without a token, a token of two words, a sentence that
    would be truncated, and sentences of different lengths where there is no padding token.

    >>> from headtools.organism.load import load
    >>> align(load()[1], [("the", "dog")]).words
    tensor([[ 0,  1, -1]])
    """
    texts = _texts(tokenizer, sentences)
    batch = tokenizer(
        [" ".join(words) for words in texts],
        padding=tokenizer.pad_token is not None,
        padding_side=padding_side,
        truncation=False,
        return_attention_mask=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    offsets, is_special = batch.pop("offset_mapping"), batch.pop("special_tokens_mask")
    word_of_token = []
    for i, (words, mask) in enumerate(zip(texts, batch["attention_mask"], strict=True)):
        row = _words_of_tokens(f"sentences[{i}]", words, offsets[i], is_special[i])
        # A row is as long as the longest of the batch; the limit is for its text alone.
        without_padding = [word for word, real in zip(row, mask, strict=True) if real]
        if len(without_padding) > tokenizer.model_max_length:
            n_special = without_padding.count(NONE)
            first = [w for w in without_padding if w != NONE][max(0, tokenizer.model_max_length - n_special)]
            raise ValueError(
                f"sentences[{i}] has {len(without_padding)} tokens; expected at most {tokenizer.model_max_length}: it "
                f"would be truncated at word {first} (from 0), {words[first]!r}; leave such long sentences out, or "
                f"write tokenizer.model_max_length = {len(without_padding)} if the model can read as many"
            )
        word_of_token.append(row)
    if len(set(map(len, word_of_token))) > 1:
        raise ValueError(
            "the sentences have different numbers of tokens, and the tokenizer has no padding token; write "
            "tokenizer.pad_token = tokenizer.eos_token (padding is masked, so any token will do)"
        )
    return Aligned(batch.convert_to_tensors("pt").to(device or "cpu"), torch.tensor(word_of_token, device=device))


@contextmanager
def numbered(indices: Sequence[int]) -> Iterator[None]:
    """Let errors inside the context name the user's sentences, of which ``align`` sees those at ``indices``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = re.sub(r"sentences\[(\d+)\]", lambda found: f"sentences[{indices[int(found[1])]}]", str(error))
        raise type(error)(text) from error


def _texts(tokenizer: object, sentences: Sequence[Sentence | Sequence[str]]) -> list[tuple[str, ...]]:
    """The words of each sentence; raises for an input without words, and for one that is not split into words."""
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"got {type(tokenizer).__name__}; expected a fast tokenizer, which has the offsets of its tokens in the "
            "text; write AutoTokenizer.from_pretrained(name), and check that tokenizer.is_fast is True"
        )
    if isinstance(sentences, Sentence | str):
        raise TypeError("got one sentence; expected a list of them: write align(tokenizer, [sentence])")
    if not len(sentences):
        raise ValueError("got no sentences; write align(tokenizer, corpus('english', limit=10))")
    out = []
    for i, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise TypeError(f"sentences[{i}] is a string; expected its words: write {sentence[:40]!r}.split()")
        words = tuple(sentence.words if isinstance(sentence, Sentence) else sentence)
        if not words:
            raise ValueError(f"sentences[{i}] has no words; leave it out")
        for w, word in enumerate(words):
            if not word.strip():
                raise ValueError(f"sentences[{i}], word {w} (counted from 0) is {word!r}: nothing to tokenize")
        out.append(words)
    return out


def _words_of_tokens(
    where: str, words: tuple[str, ...], offsets: list[tuple[int, int]], is_special: list[int]
) -> list[int]:
    """The word of each token of one sentence; ``offsets`` are the (start, end) of each token in the text."""
    # For each character of the text: its word (NONE for a space), and its word or, for a space, the next one.
    word_of_char: list[int] = []
    next_word: list[int] = []
    for w, word in enumerate(words):
        word_of_char += [NONE] * (w > 0) + [w] * len(word)
        next_word += [w] * (len(word) + (w > 0))
    row, with_token = [], set()
    for (start, end), special in zip(offsets, is_special, strict=True):
        covered = [] if special else sorted({*word_of_char[start:end]} - {NONE})
        if len(covered) > 1:
            raise ValueError(
                f"{where}: one token covers the words {' and '.join(repr(words[w]) for w in covered)} (words "
                f"{covered}, from 0), and belongs to neither; expected a tokenizer that separates words"
            )
        with_token.update(covered)
        row.append(NONE if special else covered[0] if covered else next_word[min(start, len(next_word) - 1)])
    for w, word in enumerate(words):
        if w not in with_token:
            raise ValueError(
                f"{where}: the tokenizer makes no token of word {w} (from 0), {word!r}; leave out the word or the "
                f"sentence: {' '.join(words)[:80]!r}"
            )
    return row


def to_words(maps: Tensor, words: Tensor, keys: Tensor | None = None) -> Tensor:
    """Attention maps between words: weights *to* a word's pieces are summed, those *from* its pieces averaged.

    ``maps`` (B, head, query, key) are maps of tokens, ``words`` (B, query) the tokens' words as :func:`align` gives
    them; ``keys`` (B, key) are the words of the source in cross-attention (None: the same tokens). Returns float32 (B,
    head, W, V + 1), W and V the greatest number of words among queries and keys; the last column is the weight on
    tokens that are not words (special tokens, padding), so that the row of a word still sums to 1. The rows after the
    last word of a shorter sentence are 0. Clark et al. 2019 (arXiv:1906.04341), section 4.1.

    Raises ValueError where the shapes do not match, or a batch has no words.

    >>> maps = torch.tensor([[[[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]]]])  # play ##ing [SEP]
    >>> to_words(maps, torch.tensor([[0, 0, -1]]))
    tensor([[[[0.7250, 0.2750]]]])
    """
    keys = words if keys is None else keys
    if maps.dim() != 4 or words.shape != maps.shape[:3:2] or keys.shape != (len(maps), maps.shape[-1]):
        raise ValueError(
            f"got maps {tuple(maps.shape)}, words {tuple(words.shape)} and keys {tuple(keys.shape)}; expected maps "
            "(B, head, query, key), words (B, query), keys (B, key) of one batch: batch, words = align(...)"
        )
    n, n_keys = int(words.max()) + 1, int(keys.max()) + 1
    if n < 1 or n_keys < 1:
        raise ValueError(f"words {tuple(words.shape)} hold no word (−1 is none); expected the words of align()")
    # tokens that are no words are together in a last column, and in no row
    return between_groups(maps, words, torch.where(keys < 0, n_keys, keys), n, n_keys + 1)
