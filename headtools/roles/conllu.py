"""Reads a treebank in CoNLL-U, the format of Universal Dependencies (https://universaldependencies.org/format.html).

CoNLL-U Plus, in which a comment names the columns, is read as well. Of a word its form, part of speech, head, relation
and ``Coref=`` are kept. Skipped are contracted forms (``3-4``, whose parts are the words), empty nodes (``5.1``),
comments, lemmas, features and enhanced graphs.

Required: no word is ever lost without an error. A line that is skipped must therefore be at a position where such a
line is valid: a word line with a damaged number could otherwise pass for a contracted form or a comment.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from headtools.roles.sentence import Sentence, is_tree

SUFFIXES = (".conllu", ".conllup")
COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_REQUIRED = ("ID", "FORM", "HEAD", "DEPREL")
_PLUS = re.compile(r"#\s*global\.columns\s*=(.*)")
_ID = re.compile(r"(?P<word>[0-9]{1,9})(-(?P<last>[0-9]{1,9})|\.(?P<empty>[0-9]{1,9}))?")
_NUMBER = re.compile("[0-9]{1,9}")  # ASCII, and short enough for int()
_MAX_WITHOUT_FORMS = 10  # first sentences in which every form is _; then the treebank was published without its text
_QUOTED = 60  # characters of a line in an error message

Lines = list[tuple[int, str]]  # lines with their numbers
Row = dict[str, str]


def read(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a treebank; only the current one is in memory.

    Raises FileNotFoundError for a path that does not exist, and ValueError, with the line number, for text that is not
    UTF-8, a wrong number of columns, words not numbered 1, 2, 3 ..., a range or an empty node at the wrong position, a
    word line turned into a comment, a word without a form, a head that is not a word of the sentence, heads that do not
    form a tree, a ``Coref=`` that is not a word of the sentence; for a file without sentences, and for one without its
    words (some treebanks are published with ``_`` for each).
    """
    columns, n_sentences, n_without_forms = COLUMNS, 0, 0
    for block in _blocks(path):
        try:
            columns = _columns(block) or columns
            if all(text.startswith("#") for _, text in block):
                continue
            sentence = _sentence(_words(block, columns), block[0][0])
            n_sentences += 1
            n_without_forms += set(sentence.words) == {"_"}
            if n_without_forms == n_sentences == _MAX_WITHOUT_FORMS:
                raise _Broken(
                    block[0][0],
                    "every word is written _; expected the words: this treebank has a tool that "
                    "restores them from the text it annotates",
                )
        except _Broken as error:
            raise ValueError(f"{path}, line {error}") from None
        yield sentence
    if not n_sentences:
        raise ValueError(f"{path} holds no sentences; expected the ten tab-separated columns of CoNLL-U")


class _Broken(ValueError):
    """What is wrong with a line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"{line}: {message}")


def _blocks(path: Path) -> Iterator[Lines]:
    """Yield the lines between empty lines, with their numbers."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; corpus() expects the path of a .conllu file")
    block: Lines = []
    with path.open("rb") as file:  # as bytes: text mode would end lines at other characters too
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
    """The columns that a CoNLL-U Plus comment names, if there is one."""
    for line, text in block:
        if match := _PLUS.fullmatch(text):
            names = tuple(match[1].split())
            if any(names.count(name) != 1 for name in _REQUIRED) or len({*names}) < len(names):
                raise _Broken(line, f"columns {' '.join(names)}; expected {', '.join(_REQUIRED)} and others, each once")
            return names
    return None


def _words(block: Lines, columns: tuple[str, ...]) -> list[tuple[int, Row]]:
    """The word lines, by column; other lines are skipped only where they are valid."""
    words: list[tuple[int, Row]] = []
    range_end, range_line = 0, 0  # the last range: its last word, and its line
    for line, text in block:
        fields, n = text.split("\t"), len(words)
        if text.startswith("#"):
            if words and len(fields) == len(columns):
                raise _Broken(
                    line, f"a comment with the columns of a word, {text[:_QUOTED]!r}; expected a number for #"
                )
            continue
        if len(fields) != len(columns):
            raise _Broken(line, f"{len(fields)} columns in {text[:_QUOTED]!r}; expected {len(columns)}, with tabs")
        row = dict(zip(columns, fields, strict=True))
        match = _ID.fullmatch(row["ID"])
        if not match:
            raise _Broken(line, f"not CoNLL-U: number {row['ID'][:_QUOTED]!r}; expected 3, or 3-4 or 3.1")
        word_number = int(match["word"])
        if match["empty"]:
            if word_number != n:
                raise _Broken(line, f"empty node {row['ID']} after word {n}; expected {n}.1")
        elif match["last"]:
            if word_number != n + 1 or word_number <= range_end or int(match["last"]) <= word_number:
                raise _Broken(line, f"range {row['ID']} after word {n}; expected {n + 1}-{n + 2}, or longer")
            range_end, range_line = int(match["last"]), line
        elif word_number != n + 1:
            raise _Broken(line, f"words are numbered {[*range(1, n + 1), word_number][-12:]}; expected 1, 2, 3 ...")
        elif not row["FORM"].strip():
            raise _Broken(line, f"word {word_number} has no form; expected its letters, or _")
        else:
            words.append((line, row))
    if range_end > len(words):
        raise _Broken(range_line, f"a range up to word {range_end} in a sentence of {len(words)}; expected its words")
    return words


def _sentence(words: list[tuple[int, Row]], start: int) -> Sentence:
    """One sentence from its words; ``start`` is the number of its first line in the file."""
    n = len(words)
    if not n:
        raise _Broken(start, "a sentence without words; expected a line for each, numbered 1, 2, 3 ...")
    heads = []
    for line, row in words:
        if row["HEAD"] != "_" and not _NUMBER.fullmatch(row["HEAD"]):
            raise _Broken(line, f"not CoNLL-U: head {row['HEAD'][:_QUOTED]!r}; expected a number from 0 to {n}")
        heads.append(None if row["HEAD"] == "_" else int(row["HEAD"]))
    for (line, _), head in zip(words, heads, strict=True):
        if head is None or head > n:
            raise _Broken(line, f"heads {tuple(heads[:12])}; expected one number from 0 to {n} for each word")
    if not is_tree(tuple(heads)):
        raise _Broken(start, f"heads {tuple(heads[:12])} are no tree; expected one 0, and no word above itself")
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
        given = "|".join(f"Coref={value[:_QUOTED]}" for value in values)
        raise _Broken(line, f"{given}; expected the number of a word of the sentence, 1 to {n}")
    return int(values[0])
