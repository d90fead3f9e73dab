"""Sentences with gold annotation, of the organism's own language or any treebank in CoNLL-U; and paragraphs of text."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import conllu
from conllu.exceptions import ParseException

import headtools
from headtools.roles.library_texts import LIBRARY, Texts, library_texts
from headtools.roles.sentence import Sentence, is_tree

Item = TypeVar("Item")
ENGLISH = Path(__file__).parent / "assets" / "english.conllu"
# The English sentences are in documents of ten, and all sentences of a document are in one split.
_DOCUMENT = 10
_SPLITS = ("train", "train", "validation", "test")


def corpus(name: str | Path, split: str = "test", limit: int | None = None) -> list[Sentence] | list[str]:
    """Sentences of a corpus, in order, always the same ones; of plain text, its paragraphs as strings.

    ``name`` is "organism", "organism2", "english" (320 sentences written for this project, in Universal Dependencies),
    "documents" or "code" (long texts that come with Python; ``.about`` says which version's), or the path of a
    ``.conllu``, ``.conllup``, ``.txt`` or ``.md`` file, which is one split. ``split`` is train, validation, test, of
    the organisms also hard, of the others (one half, a quarter, a quarter) also all. ``limit`` None means all, and of
    the organisms 1,000 (20,000 for train). Raises ValueError for an unknown name or split, a limit below 1 or a broken
    file (with the sentence), FileNotFoundError for a path.

    >>> print(corpus("english", limit=1)[0])
    The last train to Leeds had already left when we arrived at the station .
    >>> code = corpus("code")
    >>> code.about.split(",")[0].rstrip(".0123456789")
    '4 modules of the standard library of Python '
    """
    if limit is not None and limit < 1:
        raise ValueError(f"got limit={limit}; expected 1 or more: write limit=100, or None for all")
    module = headtools.CORPORA.get(str(name))
    if module and (of_guest := headtools.guest(module, "corpus")):
        return of_guest(split, limit)
    if name == "english":
        return in_split(_read_treebank(ENGLISH), split)[:limit]
    if name in LIBRARY:
        return Texts(in_split(library_texts(name), split, name, run=1)[:limit], name)
    path = Path(name)
    if path.suffix not in (".txt", ".md", ".conllu", ".conllup"):
        known = ", ".join([*headtools.CORPORA, "english", *LIBRARY])
        raise ValueError(f"no corpus {str(name)!r}: there is {known}, or the path of a .conllu file or of a .txt file")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; corpus() needs the path of a .conllu or .txt file")
    if path.suffix in (".txt", ".md"):
        return _read_paragraphs(path)[:limit]
    if split != "test":
        raise ValueError(f"got split={split!r} of {path}; a treebank file is one split: give the file of that split")
    return list(islice(_read_treebank(path), limit))


def in_split(items: Iterable[Item], split: str, name: str = "english", run: int = _DOCUMENT) -> list[Item]:
    """The items of one split; of every four runs of items, two are for train and one for each other split."""
    if split not in (*_SPLITS, "all"):
        raise ValueError(f"no split {split!r} of {name}: there is train, validation, test and all")
    return [item for i, item in enumerate(items) if split in ("all", _SPLITS[i // run % len(_SPLITS)])]


def _read_paragraphs(path: Path) -> list[str]:
    """The paragraphs of a text file, separated by empty lines, spaced as they are written."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save the file as UTF-8") from error
    lines = "\n".join(line if line.strip() else "" for line in text.split("\n"))
    paragraphs = [paragraph.strip("\n") for paragraph in re.split("\n{2,}", lines) if paragraph.strip()]
    if not paragraphs:
        raise ValueError(f"{path} holds no text")
    return paragraphs


def _read_treebank(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a treebank, in CoNLL-U or CoNLL-U Plus; only the current one is in memory.

    Of a word its form, part of speech, head, relation (with its subtype) and ``Coref=`` are kept. Skipped are
    contracted forms (``3-4``, whose parts are the words), empty nodes (``5.1``), comments, features, ``Entity=``,
    enhanced graphs.
    """
    n = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for tokens in conllu.parse_incr(file):
                if tokens:  # else comments alone
                    yield _sentence(tokens)
                    n += 1
    except (ValueError, ParseException) as error:
        raise ValueError(f"{path}, sentence {n + 1}: {str(error)[:300]}; is this UTF-8 CoNLL-U?") from error
    if not n:
        raise ValueError(f"{path} holds no sentences; expected the ten tab-separated columns of CoNLL-U")


def _sentence(tokens: conllu.TokenList) -> Sentence:
    """One sentence of the parser's tokens; ValueError for words, heads or links that are none."""
    words = [token for token in tokens if isinstance(token.get("id"), int)]
    numbers, n = [word["id"] for word in words], len(words)
    missing = sorted({"form", "head", "deprel"} - {*min(words, key=len, default=())})
    # The other lines are ranges (3, "-", 4) and empty nodes (5, ".", 1). One beyond the last word is a damaged word.
    others = [token["id"] for token in tokens if isinstance(token.get("id"), tuple)]
    beyond = [number for number in others if number[0] > n or (number[1] == "-" and number[2] > n)]
    if not words or missing or beyond or numbers != [*range(1, n + 1)]:
        problem = f"columns {missing} are missing" if missing else f"words are numbered {numbers[-12:]} {beyond or ''}"
        raise ValueError(f"{problem}; expected words 1, 2, 3 ... with form, head and deprel")
    forms, heads = tuple(word["form"] for word in words), tuple(word["head"] for word in words)
    if not all(isinstance(form, str) and form.strip() for form in forms) or (n > 1 and {*forms} == {"_"}):
        raise ValueError(f"words {forms[:12]}; expected letters: some treebanks come with a tool to restore them")
    if not all(isinstance(head, int) and 0 <= head <= n for head in heads) or not is_tree(heads):
        raise ValueError(f"heads {heads[:12]} are no tree; expected one 0, and no word above itself")
    coreference = tuple(int((word.get("misc") or {}).get("Coref") or 0) for word in words)
    if not all(0 <= mention <= n for mention in coreference):
        raise ValueError(f"Coref={max(coreference)} in a sentence of {n} words")
    relations, upos = (tuple(word.get(column) or "_" for word in words) for column in ("deprel", "upos"))
    return Sentence(forms, heads, relations, upos, coreference)
