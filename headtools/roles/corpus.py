"""Sentences with gold annotation: the organism's own language, or any treebank in CoNLL-U."""

from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TypeVar

import headtools
from headtools.roles.conllu import SUFFIXES, read
from headtools.roles.plain_text import TEXT_SUFFIXES, read_paragraphs
from headtools.roles.sentence import Sentence

Item = TypeVar("Item")
ENGLISH = Path(__file__).parent / "assets" / "english.conllu"
# The English sentences are in documents of ten, and all sentences of a document are in one split.
_DOCUMENT = 10
_SPLITS = ("train", "train", "validation", "test")


def corpus(name: str | Path, split: str = "test", limit: int | None = None) -> list[Sentence] | list[str]:
    """Sentences of a corpus, in order, always the same ones; of plain text, its paragraphs.

    ``name`` is ``"organism"``, ``"organism2"`` (the second organism's language), ``"english"`` (320 sentences written
    for this project, in Universal Dependencies) or the path of a ``.conllu`` or ``.conllup`` file (see
    ``headtools.roles.conllu.read``), or of a ``.txt`` or ``.md`` file, which gives its paragraphs as strings. ``split``
    is one of the organisms' train, validation, test and hard, or of the English train (160), validation (80), test (80)
    and all; a file is one split and takes no other value. ``limit`` is the greatest number of sentences; None means
    all, and of the organisms 1,000 (20,000 for train).

    Raises ValueError for an unknown name or split, a limit below 1 or a broken treebank, FileNotFoundError for a path.

    >>> print(corpus("english", limit=1)[0])
    The last train to Leeds had already left when we arrived at the station .
    """
    if limit is not None and limit < 1:
        raise ValueError(f"got limit={limit}; expected 1 or more: write limit=100, or None for all")
    registered = _registered(name)
    if registered is not None:
        return registered(split, limit)
    if name == "english":
        return english_split(read(ENGLISH), split)[:limit]

    path = Path(name)
    if path.suffix in TEXT_SUFFIXES:
        return read_paragraphs(path, limit)
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"no corpus {str(name)!r}: there is {', '.join([*headtools.CORPORA, 'english'])}, or the path of a .conllu "
            "file or of a .txt file"
        )
    if split != "test":
        raise ValueError(f"got split={split!r} of {path}; a treebank file is one split: give the file of that split")
    return list(islice(read(path), limit))


def _registered(name: str | Path) -> Callable[[str, int | None], list[Sentence]] | None:
    """The corpus of a guest, a function of split and limit; None for other names, and without that guest."""
    module = headtools.CORPORA.get(str(name))
    try:
        return None if module is None else import_module(f"headtools.{module}").corpus
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headtools"):
            return None
        raise  # the guest is there, and lacks a library


def english_split(sentences: Iterable[Item], split: str) -> list[Item]:
    """One split of the shipped treebank; of every four documents, two are for train and one for each other split."""
    if split not in (*_SPLITS, "all"):
        raise ValueError(f"no split {split!r} of english: there is train, validation, test and all")
    return [s for i, s in enumerate(sentences) if split in ("all", _SPLITS[i // _DOCUMENT % len(_SPLITS)])]
