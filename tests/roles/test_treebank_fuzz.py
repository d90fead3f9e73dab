"""The reader of treebanks on texts that are none: it reads them, or says in one line which line is wrong."""

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headtools as ht

from ..hostile import HOSTILE

ROWS = [("1", "The", "2", "det"), ("2", "sea", "3", "nsubj"), ("3", "rose", "0", "root"), ("4", ".", "3", "punct")]


def conllu(rows=ROWS, comment="# text = The sea rose ."):
    lines = ["\t".join((i, form, "_", "NOUN", "_", "_", head, relation, "_", "_")) for i, form, head, relation in rows]
    return "\n".join([comment, *lines, "", ""])


WHOLE = conllu() * 2


def outcome(data, folder):
    """The sentences of these bytes, or the message; whatever else is raised goes through and fails the test."""
    path = folder / "a.conllu"
    path.write_bytes(data)
    try:
        found = ht.corpus(path)
    except ValueError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert message.startswith(str(path))
        assert len(message) < 600, "a message is read by people"
        assert "\n" not in message
        return message
    for sentence in found:
        n = len(sentence.words)
        assert n == len(sentence.heads) == len(sentence.relations) == len(sentence.upos) == len(sentence.coreference)
        assert sentence.heads.count(0) == 1
        assert all(0 <= head <= n for head in (*sentence.heads, *sentence.coreference))
        assert all(word.strip() for word in sentence.words)
    return found


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("times", range(4))
def test_hostile_words_relations_and_comments(name, times, tmp_path):
    text = HOSTILE[name].encode("utf-8", "surrogatepass")
    for cell in (b"sea", b"nsubj", b"# text = The sea rose .", b"\tNOUN\t"):
        changed = cell.replace(b"sea", text) if cell == b"sea" else text
        before, mark, after = conllu().encode().partition(cell)
        assert mark
        outcome(before + (changed if times < 2 else changed * times) + after, tmp_path)
    clean = HOSTILE[name].replace("\t", "").replace("\n", "").replace("\r", "").strip()
    if name != "surrogate" and clean:
        (sentence,) = outcome(conllu([ROWS[0], ("2", clean, "3", clean), *ROWS[2:]]).encode(), tmp_path)
        assert sentence.words[1] == clean
        assert sentence.relations[1] == clean
        assert unicodedata.normalize("NFC", clean)  # kept as it is, not normalised


def test_every_truncation_is_read_or_told(tmp_path):
    data = WHOLE.encode()
    whole = outcome(data, tmp_path)
    for size in range(len(data)):
        found = outcome(data[:size], tmp_path)
        if not isinstance(found, str):
            assert found[: len(found) - 1] == whole[: len(found) - 1]


def test_bytes_flipped_moved_and_doubled(tmp_path):
    draw = random.Random(0)
    for _ in range(600):
        data = bytearray(WHOLE.encode())
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            way = draw.randrange(4)
            if way == 0:
                data[at] = draw.randrange(256)
            elif way == 1:
                del data[at : at + draw.randint(1, 30)]
            elif way == 2:
                data[at:at] = data[at : at + draw.randint(1, 30)]
            else:
                data[at:at] = draw.choice([b"\t", b"\n", b"\r", b"\x00", b"\xff", b"-", b"9" * 5000, "\u2028".encode()])
        outcome(bytes(data), tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("treebank")


CELL = st.text(max_size=6) | st.sampled_from(["0", "1", "2", "-1", "1-2", "1.1", "٣", "1e3", "_", "", "9" * 40])


@given(rows=st.lists(st.tuples(*[CELL] * 10), max_size=4))
@settings(max_examples=150, derandomize=True, database=None, deadline=None)
def test_law_any_cells_are_read_or_told(rows, folder):
    text = "\n".join("\t".join(row) for row in rows) + "\n\n"
    outcome(text.encode("utf-8", "surrogatepass"), folder)


@given(text=st.binary(max_size=200))
@settings(max_examples=150, derandomize=True, database=None, deadline=None)
def test_law_any_bytes_are_read_or_told(text, folder):
    outcome(text, folder)
