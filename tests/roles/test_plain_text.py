"""Plain text: paragraphs, sentences as written, batches of texts and packed chunks."""

import hashlib
import platform
import sys

import pytest
import torch

import headtools as ht
from headtools.roles.library_texts import Texts
from headtools.roles.plain_text import natural_text, text_batches

from .tiny_llama import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def test_the_english_sentences_are_those_of_the_corpus():
    for split in ("train", "validation", "test", "all"):
        texts, sentences = natural_text("english", split), ht.corpus("english", split)
        assert len(texts) == len(sentences)
        for text, sentence in zip(texts, sentences, strict=True):
            assert text.replace(" ", "") == "".join(sentence.words).replace(" ", "")
    assert any(" ." not in text for text in texts)


def test_paragraphs_of_a_file(tmp_path):
    file = tmp_path / "book.txt"
    file.write_bytes("\ufeffFirst  line,\nsecond line.\n\n \nAnother…\n".encode())
    assert ht.corpus(file) == ["First  line,\nsecond line.", "Another…"]
    assert ht.corpus(str(file), limit=1) == ["First  line,\nsecond line."]
    with pytest.raises(FileNotFoundError, match="is not there"):
        ht.corpus(tmp_path / "none.txt")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        ht.corpus(file)
    file.write_text("\n \n")
    with pytest.raises(ValueError, match="holds no text"):
        ht.corpus(file)


def test_rows_are_sorted_and_carry_their_own_labels(tokenizer):
    texts = natural_text("english", "test", 30)
    batches = text_batches(tokenizer, [*texts, "a", ""], batch_size=8)
    assert batches.skipped == 2
    rows = []
    for batch in batches:
        for ids, mask, labels in zip(*batch.values(), strict=True):
            real = ids[mask.bool()].tolist()
            counted = labels != -100
            assert torch.equal(labels[counted], ids[counted])
            assert int(counted.sum()) == len(real)
            assert not mask[len(real) :].any(), "padding on the right"
            rows.append(real)
    lengths = [len(row) for row in rows]
    assert lengths == sorted(lengths)
    assert sorted(rows) == sorted(tokenizer(text).input_ids for text in texts)
    assert batches.rows == len(rows)
    assert batches.padding < 0.2
    assert batches.tokens == sum(lengths)


def test_chunks_are_the_text_in_order(tokenizer):
    texts = natural_text("english", "test", 10)
    batches = text_batches(tokenizer, texts, length=16, batch_size=3, separator=" ")
    ids = torch.cat([batch["input_ids"] for batch in batches])
    assert ids.shape[1] == 16
    assert batches.padding == 0
    joined = tokenizer(" ".join(texts)).input_ids
    assert ids.flatten().tolist() == joined[: ids.numel()]
    assert batches.skipped == len(joined) - ids.numel() < 16


def test_chunks_with_a_start_token(tokenizer):
    """The start token counts in the length, so that a position means the same in every row."""
    texts = natural_text("english", "test", 10)
    batches = text_batches(tokenizer, texts, length=16, batch_size=3, separator=" ", start=True)
    ids = torch.cat([batch["input_ids"] for batch in batches])
    assert ids.shape[1] == 16
    assert (ids[:, 0] == tokenizer.bos_token_id).all()
    joined = tokenizer(" ".join(texts)).input_ids
    assert ids[:, 1:].flatten().tolist() == joined[: 15 * len(ids)]
    assert batches.skipped == len(joined) - 15 * len(ids) < 15
    rows = text_batches(tokenizer, ["a", "", "a fox"], batch_size=8, start=True)
    assert rows.skipped == 1  # of the empty text nothing is predicted
    assert rows[0]["input_ids"][0, :2].tolist() == [tokenizer.bos_token_id, tokenizer("a").input_ids[0]]


@pytest.mark.parametrize("name", ["documents", "code"])
def test_the_texts_that_come_with_python(name, monkeypatch, tmp_path):
    everything = ht.corpus(name, "all")
    splits = {split: ht.corpus(name, split) for split in ("train", "validation", "test")}
    assert natural_text(name, "test", limit=2) == splits["test"][:2] == everything[3:8:4]
    assert sorted(text for texts in splits.values() for text in texts) == sorted(everything)
    assert len(set(everything)) == len(everything) >= 16, "no text in two splits"
    assert sum(map(len, everything)) > 400_000
    digests = {texts.about.split("SHA-256 ")[1] for texts in (everything, *splits.values())}
    assert len(digests) == 4
    assert f"Python {platform.python_version()}" in everything.about
    if name == "code":
        monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    else:
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(FileNotFoundError, match="this Python came without"):
        ht.corpus(name)


def test_the_digest_is_that_of_the_text():
    assert Texts(["a", "b"], "code").about.endswith(hashlib.sha256(b"a\0b").hexdigest()[:16])


def test_a_causal_model_is_measured_on_them(tokenizer):
    from .tiny_llama import tiny_llama

    model, batches = tiny_llama(), text_batches(tokenizer, natural_text("english", "test", 6), batch_size=2)
    together = ht.gradient(model, batches)
    alone = ht.gradient(model, text_batches(tokenizer, natural_text("english", "test", 6), batch_size=1))
    assert torch.allclose(together.flat(), alone.flat(), rtol=1e-4)
