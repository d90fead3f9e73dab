"""The structural rules of Universal Dependencies, for an English treebank in CoNLL-U: what is wrong, and in which line.

The rules are those of https://universaldependencies.org/format.html and of levels 2 and 3 of the official validator,
as far as they concern the basic tree; features and enhanced graphs are not looked at.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headtools.roles.corpus import is_tree

_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
_UNIVERSAL = """
    acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse dislocated expl fixed
    flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum root vocative xcomp"""
_SUBTYPES = """
    acl:relcl advcl:relcl aux:pass cc:preconj compound:prt csubj:outer csubj:pass det:predet flat:foreign nmod:desc
    nmod:poss nmod:unmarked nsubj:outer nsubj:pass obl:agent obl:unmarked"""
UPOS = frozenset(_UPOS.split())
RELATIONS = frozenset((_UNIVERSAL + _SUBTYPES).split())
# Relations whose dependent stands to the right of its head.
RIGHTWARD = frozenset({"conj", "fixed", "flat", "goeswith", "appos"})
# What may hang on a function word; on punctuation, nothing.
_ANYWHERE = frozenset({"goeswith", "reparandum", "punct", "conj", "cc"})
_MODIFIED = _ANYWHERE | {"fixed", "advmod", "obl", "nmod"}
CHILDREN = {
    "punct": frozenset(),
    "fixed": frozenset({"goeswith", "reparandum"}),
    "cc": _ANYWHERE | {"fixed", "advmod"},
    "aux": _ANYWHERE,
    "cop": _ANYWHERE,
    "case": _MODIFIED,
    "mark": _MODIFIED,
    "det": _MODIFIED,
}
# Parts of speech that a relation admits; a word with a fixed dependent is free, since it stands for the whole phrase.
ADMITS = {
    "punct": {"PUNCT"},
    "aux": {"AUX"},
    "cop": {"AUX"},
    "cc": {"CCONJ"},
    "mark": {"SCONJ", "ADP", "PART"},
    "case": {"ADP", "PART"},
    "det": {"DET"},
    "nummod": {"NUM"},
    "expl": {"PRON"},
    "advmod": {"ADV", "ADJ", "PART", "CCONJ", "DET"},
}
# A clause has at most one of each.
SINGLE = {"nsubj": "subject", "csubj": "subject", "obj": "obj", "iobj": "iobj", "cop": "cop"}


_ID = re.compile(r"[1-9]\d*(-[1-9]\d*)?|\d+\.[1-9]\d*")


class _Word(NamedTuple):
    line: int
    form: str
    upos: str
    head: int
    relation: str
    misc: dict[str, str]

    @property
    def universal(self) -> str:
        """The relation without its subtype."""
        return self.relation.split(":")[0]


def validate(path: str | Path) -> list[str]:
    """Complaints about a treebank, in the order of its lines, each beginning with ``line N:``; empty when it is sound.

    For each sentence: ten columns; words numbered 1, 2, 3 ...; known parts of speech and relations; one root, which is
    no punctuation, and a tree; conj, fixed, flat, goeswith and appos to the right of their heads; function words
    without dependents of their own, but for those UD permits; at most one subject, obj, iobj and cop to a clause;
    punctuation that crosses nothing; ``# text`` equal to the forms with their spaces; ``Coref=`` naming an earlier
    word. For the file: each sentence has an id of its own, and no sentence stands in it twice.

    Raises FileNotFoundError for a path that is not there, and ValueError for text that is not UTF-8.

    >>> validate(Path(__file__).parent / "assets" / "english.conllu")
    []
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save the file as UTF-8") from error
    complaints: list[tuple[int, str]] = []
    seen: dict[tuple[str, str], int] = {}
    for start, block in _blocks(lines):
        complaints += _sentence(start, block)
        for name in ("sent_id", "text"):
            value = _comment(block, name)
            if value is None:
                complaints.append((start, f"no '# {name} = ...'"))
            elif (name, value) in seen:
                complaints.append((start, f"{name} {value!r} stands already in line {seen[name, value]}"))
            else:
                seen[name, value] = start
    return [f"line {number}: {complaint}" for number, complaint in sorted(complaints, key=lambda c: c[0])]


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Each sentence: the number of its first line, and its lines."""
    start = 0
    for i, line in enumerate([*lines, ""]):
        if not line.strip():
            if any(not text.startswith("#") for text in lines[start:i]):
                yield start + 1, lines[start:i]
            start = i + 1


def _comment(block: list[str], name: str) -> str | None:
    """The value of '# name = value'."""
    values = [line.split("=", 1)[1].strip() for line in block if line.startswith(f"# {name} =")]
    return values[0] if values else None


def _sentence(start: int, block: list[str]) -> list[tuple[int, str]]:
    """Complaints about one sentence; the format first, since the rest needs it."""
    rows = [(i, line.split("\t")) for i, line in enumerate(block, start) if not line.startswith("#")]
    bad = [(i, f"{len(row)} columns; needed: 10, with tabs between") for i, row in rows if len(row) != 10]
    if bad:
        return bad
    plain = [(i, row) for i, row in rows if row[0].isdigit()]
    n = len(plain)
    bad = [(i, f"id {row[0]!r}; needed: 3, 3-4 or 3.1") for i, row in rows if not _ID.fullmatch(row[0])]
    if bad:
        return bad
    if [row[0] for _, row in plain] != [str(k) for k in range(1, n + 1)]:
        return [(start, f"words are numbered {' '.join(row[0] for _, row in plain)}; needed: 1 2 3 ...")]
    bad = [(i, f"head {row[6]!r}; needed: 0 to {n}") for i, row in plain if not (row[6].isdigit() and int(row[6]) <= n)]
    if bad:
        return bad
    words = [_Word(i, r[1], r[3], int(r[6]), r[7], _misc(r[9])) for i, r in plain]
    out = [*_ranges([(i, row[0]) for i, row in rows], n), *_labels(words)]
    if not is_tree(tuple(word.head for word in words)):
        return [*out, (start, "the heads are no tree; needed: one 0, and no word above itself")]
    out += [*_places(words), *_leaves(words), *_crossings(words), *_coreference(words)]
    text = _comment(block, "text")
    spelled = _spelled([row for _, row in rows])
    if text is not None and text != spelled:
        out.append((start, f"text is {text!r}, but the forms give {spelled!r}"))
    return out


def _ranges(ids: list[tuple[int, str]], n: int) -> Iterator[tuple[int, str]]:
    """Ranges (3-4) that overlap, or do not stand before their first word."""
    covered = 0
    for (line, number), (_, after) in zip(ids, [*ids[1:], (0, "")], strict=True):
        if "-" in number:
            first, last = map(int, number.split("-"))
            if not covered < first < last <= n or after != str(first):
                yield line, f"range {number}; needed: before its first word, and apart from other ranges"
            covered = last


def _misc(column: str) -> dict[str, str]:
    return {key: value for key, _, value in (pair.partition("=") for pair in column.split("|"))}


def _labels(words: list[_Word]) -> Iterator[tuple[int, str]]:
    """Unknown labels, and parts of speech that do not go with the relation."""
    fixed = {word.head for word in words if word.relation == "fixed"}
    for k, word in enumerate(words, 1):
        if word.upos not in UPOS:
            yield word.line, f"{word.form}: no part of speech {word.upos!r} in UD"
        if word.relation not in RELATIONS:
            yield word.line, f"{word.form}: no relation {word.relation!r} in UD for English"
        if (word.relation == "root") != (word.head == 0):
            yield word.line, f"{word.form}: relation {word.relation} with head {word.head}; root and 0 go together"
        if word.relation == "root" and word.upos == "PUNCT":
            yield word.line, f"{word.form}: punctuation cannot be the root"
        admitted = {"DET"} if word.relation == "det:predet" else ADMITS.get(word.universal, UPOS)
        if k not in fixed and word.upos in UPOS and word.upos not in admitted:
            yield word.line, f"{word.form}: a {word.upos} cannot be {word.relation}"
        if word.upos == "PUNCT" and word.relation not in ("punct", "root"):
            yield word.line, f"{word.form}: punctuation cannot be {word.relation}"


def _places(words: list[_Word]) -> Iterator[tuple[int, str]]:
    """Dependents on the wrong side of their heads, and clauses with two subjects or objects."""
    count: Counter[tuple[int, str]] = Counter()
    for k, word in enumerate(words, 1):
        if word.universal in RIGHTWARD and word.head > k:
            yield word.line, f"{word.form}: {word.relation} must stand to the right of its head"
        role = SINGLE.get(word.universal)
        if role and not word.relation.endswith(":outer"):
            count[word.head, role] += 1
            if count[word.head, role] == 2:
                yield word.line, f"{word.form}: {words[word.head - 1].form!r} has a {role} already"


def _leaves(words: list[_Word]) -> Iterator[tuple[int, str]]:
    """Words that hang on function words."""
    for word in words:
        above = words[word.head - 1] if word.head else None
        if above and above.universal in CHILDREN and word.universal not in CHILDREN[above.universal]:
            yield word.line, f"{word.form}: {word.relation} cannot hang on {above.form!r}, which is {above.relation}"


def _crossings(words: list[_Word]) -> Iterator[tuple[int, str]]:
    """Punctuation whose arc crosses another, or that stands in a gap of its own making."""
    for k, word in enumerate(words, 1):
        if word.relation != "punct":
            continue
        low, high = sorted((k, word.head))
        if any(not _under(words, between, word.head) for between in range(low + 1, high)):
            yield word.line, f"{word.form}: the arc of a punctuation mark crosses another"
        for d, other in enumerate(words, 1):
            low, high = sorted((d, other.head))
            # A mark that hangs on a word of the same gap does not cause the gap.
            if other.head and low < k < high and not low < word.head < high and not _under(words, k, other.head):
                yield word.line, f"{word.form}: stands between {other.form!r} and its head without hanging there"


def _under(words: list[_Word], number: int, ancestor: int) -> bool:
    """Whether a word is another one's descendant, or the same."""
    while number not in (0, ancestor):
        number = words[number - 1].head
    return number == ancestor


def _coreference(words: list[_Word]) -> Iterator[tuple[int, str]]:
    """Anaphors that do not name an earlier word."""
    for k, word in enumerate(words, 1):
        value = word.misc.get("Coref")
        if value is not None and not (value.isdigit() and 1 <= int(value) < k):
            yield word.line, f"{word.form}: Coref={value}; needed: the number of an earlier word"


def _spelled(rows: list[list[str]]) -> str:
    """The sentence as its forms spell it: a range (3-4) stands for its words."""
    text, covered = "", 0
    for row in rows:
        first, dash, last = row[0].partition("-")
        if "." in first or (not dash and int(first) <= covered):
            continue
        covered = int(last) if dash else covered
        text += row[1] + ("" if _misc(row[9]).get("SpaceAfter") == "No" else " ")
    return text.rstrip(" ")
