"""Reads a treebank in CoNLL-U, the format of Universal Dependencies (https://universaldependencies.org/format.html)."""

from collections.abc import Iterator
from pathlib import Path

import conllu
from conllu.exceptions import ParseException

from headtools.roles.sentence import Sentence, is_tree

SUFFIXES = (".conllu", ".conllup")


def read(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a treebank, in CoNLL-U or CoNLL-U Plus; only the current one is in memory.

    Of a word its form, part of speech, head, relation (with its subtype) and ``Coref=`` are kept. Skipped are
    contracted forms (``3-4``, whose parts are the words), empty nodes (``5.1``), comments, features, ``Entity=``,
    enhanced graphs.

    Raises FileNotFoundError for a path that does not exist, and ValueError, with the number of the sentence, for text
    that is not UTF-8 or not CoNLL-U, words not numbered 1, 2, 3 ..., heads that do not form a tree, a ``Coref=`` that
    is not a word of the sentence, a file without sentences, and one without its words (some have ``_`` for each).
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; corpus() expects the path of a .conllu file")
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
