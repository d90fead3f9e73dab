"""Reads a treebank in CoNLL-U, the format of Universal Dependencies, without losing a word.

The format is that of https://universaldependencies.org/format.html; CoNLL-U Plus, in which a comment names the columns,
is read as well. Of a word its form, part of speech, head, relation and ``Coref=`` are kept. Passed over are contracted
forms (``3-4``, whose parts are the words), empty nodes (``5.1``), comments, lemmas, features and enhanced graphs.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from headtools.roles.sentence import Sentence, is_tree

SUFFIXES = (".conllu", ".conllup")
COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_NEEDED = ("ID", "FORM", "HEAD", "DEPREL")
_PLUS = re.compile(r"#\s*global\.columns\s*=(.*)")
_ID = re.compile(r"(?P<word>[0-9]{1,9})(-(?P<last>[0-9]{1,9})|\.(?P<empty>[0-9]{1,9}))?")
_NUMBER = re.compile("[0-9]{1,9}")  # ASCII, and short enough for int()
_HIDDEN = 10  # so many sentences written with _ alone are a treebank without its words
_SHOWN = 60

Lines = list[tuple[int, str]]  # lines with their numbers
Row = dict[str, str]


def read(path: Path) -> Iterator[Sentence]:
    """The sentences of a treebank, one at a time; only the current one is in memory.

    Raises FileNotFoundError for a path that is not there, and ValueError, with the number of the line, for text that
    is not UTF-8, a wrong number of columns, words not numbered 1, 2, 3 ..., a range or an empty node out of its place
    (a word whose number is damaged looks like one), a word line made a comment, a word without a form, a head that is
    no word of the sentence, heads that are no tree, a ``Coref=`` that is no word of the sentence; for a file without
    sentences, and for one without its words (some treebanks come with ``_`` for each).
    """
    columns, found, hidden = COLUMNS, 0, 0
    for block in _blocks(path):
        try:
            columns = _columns(block) or columns
            if all(text.startswith("#") for _, text in block):
                continue
            sentence = _sentence(_words(block, columns), block[0][0])
            found, hidden = found + 1, hidden + (set(sentence.words) == {"_"})
            if hidden == found == _HIDDEN:
                raise _Broken(block[0][0], "every word is written _; needed: the words, which this treebank's own "
                              "tool puts back from the text that it is made of")  # fmt: skip
        except _Broken as error:
            raise ValueError(f"{path}, line {error}") from None
        yield sentence
    if not found:
        raise ValueError(f"{path} holds no sentences; needed: the ten tab-separated columns of CoNLL-U")


class _Broken(ValueError):
    """What is wrong in a line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"{line}: {what}")


def _blocks(path: Path) -> Iterator[Lines]:
    """The lines between empty lines."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; corpus() needs the path of a .conllu file")
    block: Lines = []
    with path.open("rb") as file:  # as bytes, a line ends with a line feed, and not with all that Unicode calls an end
        for i, raw in enumerate(file, 1):
            try:
                text = raw.decode("utf-8").removeprefix("\ufeff").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {i}: not UTF-8 text ({error}); save the file as UTF-8") from error
            if text.strip():
                block.append((i, text))
            elif block:
                yield block
                block = []
    if block:
        yield block


def _columns(block: Lines) -> tuple[str, ...] | None:
    """The columns that a comment of CoNLL-U Plus names, if there is one."""
    for line, text in block:
        if match := _PLUS.fullmatch(text):
            names = tuple(match[1].split())
            if any(names.count(name) != 1 for name in _NEEDED) or len({*names}) < len(names):
                raise _Broken(line, f"columns {' '.join(names)}; needed: {', '.join(_NEEDED)} and others, each once")
            return names
    return None


def _words(block: Lines, columns: tuple[str, ...]) -> list[tuple[int, Row]]:
    """The lines of words, by column; what is no word is passed over only where it stands in its place."""
    words: list[tuple[int, Row]] = []
    covered, range_line = 0, 0
    for line, text in block:
        fields, n = text.split("\t"), len(words)
        if text.startswith("#"):
            if words and len(fields) == len(columns):
                raise _Broken(line, f"a comment with the columns of a word, {text[:_SHOWN]!r}; needed: a number for #")
            continue
        if len(fields) != len(columns):
            raise _Broken(line, f"{len(fields)} columns in {text[:_SHOWN]!r}; needed: {len(columns)}, tabs between")
        row = dict(zip(columns, fields, strict=True))
        match = _ID.fullmatch(row["ID"])
        if not match:
            raise _Broken(line, f"not CoNLL-U: number {row['ID'][:_SHOWN]!r}; needed: 3, or 3-4 or 3.1 for no word")
        number = int(match["word"])
        if match["empty"]:
            if number != n:
                raise _Broken(line, f"empty node {row['ID']} behind word {n}; needed: {n}.1")
        elif match["last"]:
            if number != n + 1 or number <= covered or int(match["last"]) <= number:
                raise _Broken(line, f"range {row['ID']} behind word {n}; needed: {n + 1}-{n + 2}, or longer")
            covered, range_line = int(match["last"]), line
        elif number != n + 1:
            raise _Broken(line, f"words are numbered {[*range(1, n + 1), number][-12:]}; needed: 1, 2, 3 ...")
        elif not row["FORM"].strip():
            raise _Broken(line, f"word {number} has no form; needed: its letters, or _")
        else:
            words.append((line, row))
    if covered > len(words):
        raise _Broken(range_line, f"a range up to word {covered} in a sentence of {len(words)}; needed: all its words")
    return words


def _sentence(words: list[tuple[int, Row]], start: int) -> Sentence:
    """One sentence from its words; ``start`` is the number of its first line."""
    n = len(words)
    if not n:
        raise _Broken(start, "a sentence without words; needed: a line for each, numbered 1, 2, 3 ...")
    heads = []
    for line, row in words:
        if row["HEAD"] != "_" and not _NUMBER.fullmatch(row["HEAD"]):
            raise _Broken(line, f"not CoNLL-U: head {row['HEAD'][:_SHOWN]!r}; needed: a number from 0 to {n}")
        heads.append(None if row["HEAD"] == "_" else int(row["HEAD"]))
    for (line, _), head in zip(words, heads, strict=True):
        if head is None or head > n:
            raise _Broken(line, f"heads {tuple(heads[:12])}; needed: one number from 0 to {n} for each word")
    if not is_tree(tuple(heads)):
        raise _Broken(start, f"heads {tuple(heads[:12])} are no tree; needed: one 0, and no word above itself")
    return Sentence(
        words=tuple(row["FORM"] for _, row in words),
        heads=tuple(heads),
        relations=tuple(row["DEPREL"] or "_" for _, row in words),
        upos=tuple(row.get("UPOS") or "_" for _, row in words),
        coreference=tuple(_antecedent(line, row.get("MISC") or "_", n) for line, row in words),
    )


def _antecedent(line: int, misc: str, n: int) -> int:
    """Number after ``Coref=`` in the last column, by which a file names a pronoun's antecedent; 0 without one."""
    values = [pair.removeprefix("Coref=") for pair in misc.split("|") if pair.startswith("Coref=")]
    if not values:
        return 0
    if len(values) > 1 or not _NUMBER.fullmatch(values[0]) or int(values[0]) > n:
        came = "|".join(f"Coref={value[:_SHOWN]}" for value in values)
        raise _Broken(line, f"{came}; needed: the number of a word of the sentence, 1 to {n}")
    return int(values[0])
