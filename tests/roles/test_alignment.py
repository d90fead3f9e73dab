"""Which token belongs to which word: every kind of fast tokenizer, compared with each word tokenized by itself."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headtools.roles.word_alignment import NONE, align, to_words

SENTENCES = [
    ("The", "naïve", "café", "owner", "did", "n't", "reply", "—", "unbelievable", "!"),
    ("👩‍👩‍👧", "and", "🙂", "met", "at", "10 000", "cafe\u0301s", "?!"),
    ("...",),
    ("日本語", "is", "½", "ﬁne", "İstanbul", "<", ">", "#", "##ed", "_", "¡olé", "«", "»", "$5.00", "e-mail", "…"),
]  # a word with a space in it, a decomposed accent, signs that NFKC writes with several letters, marks only
TEXT = [" ".join(words) for words in SENTENCES] * 3 + ["the cafe owner met and did reply unbelievable mail"] * 3
MARKS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def wrapped(tokenizer, text=TEXT, trainer=None, **more):
    """A fast tokenizer with marks on both sides, taught ``text``."""
    if trainer:
        tokenizer.train_from_iterator(text, trainer)
    ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    marks = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(marks | more))


def word_piece(**more):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return wrapped(
        tokenizer, trainer=trainers.WordPieceTrainer(vocab_size=150, special_tokens=MARKS, show_progress=False), **more
    )


def byte_level(prefix, **more):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=MARKS, initial_alphabet=letters, show_progress=False)
    return wrapped(tokenizer, trainer=trainer, **more)


def unigram(**more):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=110, special_tokens=MARKS, unk_token="[UNK]", show_progress=False)
    return wrapped(tokenizer, TEXT[-3:], trainer, **more)  # most signs unknown


def no_pre_tokenizer(**more):
    """Spaces become part of the text itself and unknown letters bytes, as in Llama 2."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", byte_fallback=True, fuse_unk=True))
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = sorted({*"".join(TEXT[-3:]), "▁"} - {" "})
    words = [*MARKS, *bytes_, *letters]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("n", "d")]
    words += [a + b for a, b in merges]
    tokenizer.model = models.BPE(
        {w: i for i, w in enumerate(words)}, merges, unk_token="[UNK]", byte_fallback=True, fuse_unk=True
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return wrapped(tokenizer, **more)


def end_of_word(**more):
    """The last piece of a word is marked, as in CLIP and in the first GPT."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=MARKS, end_of_word_suffix="</w>", show_progress=False)
    return wrapped(tokenizer, trainer=trainer, **more)


# How each tokenizer sees a word that stands behind another.
KINDS = {
    "WordPiece": (word_piece, "{}"),
    "BPE of bytes": (lambda **more: byte_level(False, **more), " {}"),
    "BPE of bytes, prefix space": (lambda **more: byte_level(True, **more), "{}"),
    "Unigram": (unigram, "{}"),
    "BPE, no pre-tokenizer": (no_pre_tokenizer, "{}"),
    "BPE, end of word": (end_of_word, "{}"),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_words_tokens_are_those_it_has_by_itself(kind, side):
    make, alone = KINDS[kind]
    tokenizer = make(padding_side=side)
    batch, words = align(tokenizer, SENTENCES)
    tokenizer.padding_side = {"left": "right", "right": "left"}[side]
    assert align(tokenizer, SENTENCES, padding_side=side).batch.input_ids.equal(batch.input_ids)
    assert words.shape == batch.input_ids.shape == batch.attention_mask.shape
    assert set(batch) <= set(tokenizer.model_input_names)
    pieces = 0
    for sentence, ids, row, mask in zip(SENTENCES, batch.input_ids, words, batch.attention_mask, strict=True):
        for w, word in enumerate(sentence):
            text = word if w == 0 else alone.format(word)
            expected = tokenizer(text, add_special_tokens=False).input_ids
            assert ids[row == w].tolist() == expected, (kind, word)
            pieces += len(expected)
        assert row[mask == 1].tolist() == [NONE, *sorted(row[row != NONE].tolist()), NONE], "marks at both ends"
        assert (row[mask == 0] == NONE).all()
        assert bool(mask[0 if side == "right" else -1]), "padding is on the tokenizer's side"
    assert pieces > sum(map(len, SENTENCES)), "some words must come in pieces for this test to mean anything"


def test_the_text_is_the_plain_text():
    """Other than with is_split_into_words, a tokenizer without prefix space does not glue the words together."""
    tokenizer = byte_level(False)
    ids = align(tokenizer, [("the", "cafe")]).batch.input_ids[0]
    assert tokenizer.decode(ids, skip_special_tokens=True).split() == ["the", "Ġcafe"]


def test_a_marks_name_in_the_text_is_a_word():
    _, words = align(word_piece(), [("the", "[SEP]", "owner")])
    assert sorted({*words[0].tolist()}) == [NONE, 0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "word"), [("WordPiece", "\u200b"), ("WordPiece", "\u0301"), ("letters", "🙂"), ("letters", "🙂🙂")]
)
def test_a_word_that_vanishes_is_refused(kind, word):
    if kind == "letters":  # BPE without an unknown token drops what it does not know, but keeps the space
        tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate([*MARKS, "▁", *"theownr"])}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer = wrapped(tokenizer)
    else:
        tokenizer = word_piece()
    align(tokenizer, [("the", "owner")])
    with pytest.raises(ValueError, match="makes no token of word 1") as error:
        align(tokenizer, [("the", "owner"), ("the", word, "owner")])
    assert str(error.value).startswith("sentences[1]")
    assert repr(word) in str(error.value)


def test_a_sentence_that_would_be_cut_off_is_refused():
    tokenizer = word_piece(model_max_length=7)
    long = ("the", "owner", "did", "mail", "the", "cafe", "owner")
    n = [len(tokenizer(" ".join(long[: i + 1]), add_special_tokens=False).input_ids) for i in range(len(long))]
    first = next(i for i, tokens in enumerate(n) if tokens > 7 - 2)
    with pytest.raises(ValueError, match=rf"\[1\] has {n[-1] + 2} tokens; expected at most 7: .* at word {first} "):
        align(tokenizer, [("the",), long])
    tokenizer.model_max_length = n[-1] + 2
    assert align(tokenizer, [("the",), long]).words.shape == (2, n[-1] + 2)


def test_no_token_to_pad_with():
    tokenizer = byte_level(True)
    tokenizer.pad_token = None
    assert align(tokenizer, [("the",), ("the",)]).words.shape[0] == 2
    with pytest.raises(ValueError, match=r"tokenizer\.pad_token = tokenizer\.eos_token"):
        align(tokenizer, [("the",), ("the", "unbelievable", "owner")])


def test_a_token_of_two_words_is_refused():
    numbers = {word: i for i, word in enumerate([*MARKS, *"ab ", "a ", "a b"])}
    tokenizer = wrapped(Tokenizer(models.BPE(numbers, [("a", " "), ("a ", "b")])))
    with pytest.raises(ValueError, match=r"covers the words 'a' and 'b' \(words \[0, 1\]"):
        align(tokenizer, [("a", "b")])


# Maps between words.


def by_hand(maps, words, keys):
    """Clark's rule, one weight at a time."""
    b, h, q, k = maps.shape
    w, v = int(words.max()) + 1, int(keys.max()) + 1
    out = torch.zeros(b, h, w, v + 1)
    for i in range(b):
        for row in range(q):
            word = int(words[i, row])
            if word >= 0:
                pieces = int((words[i] == word).sum())
                for column in range(k):
                    to = int(keys[i, column])
                    out[i, :, word, to if to >= 0 else v] += maps[i, :, row, column] / pieces
    return out


def drawn(seed=0, b=3, h=2, t=9):
    generator = torch.Generator().manual_seed(seed)
    words = torch.full((b, t), NONE)
    for i in range(b):
        n = t - 2 * i
        words[i, 1 : n - 1] = torch.randint(0, 2, (n - 2,), generator=generator).cumsum(0)
        words[i, 1 : n - 1] -= words[i, 1].clone()
    return torch.rand(b, h, t, t, generator=generator).softmax(-1), words


@pytest.mark.parametrize("seed", range(5))
def test_maps_of_words_against_one_weight_at_a_time(seed):
    maps, words = drawn(seed)
    found = to_words(maps, words)
    torch.testing.assert_close(found, by_hand(maps, words, words))
    for i, row in enumerate(words):
        n = int(row.max()) + 1
        torch.testing.assert_close(found[i, :, :n].sum(-1), torch.ones(2, n))
        assert not found[i, :, n:].any(), "a shorter sentence has no more words"
    other = drawn(seed + 100, t=7)[1]
    torch.testing.assert_close(to_words(maps[..., :7], words, other), by_hand(maps[..., :7], words, other))


def test_statistics_are_float32():
    maps, words = drawn()
    assert to_words(maps.half(), words).dtype == torch.float32
    torch.testing.assert_close(to_words(maps.half(), words), to_words(maps, words), atol=1e-3, rtol=0)
