"""Sentences with gold annotation: the organism's own language, or any treebank in CoNLL-U.

>>> sentence = corpus("organism", limit=1)[0]
>>> len(sentence.words) == len(sentence.heads) == len(sentence.relations) == len(sentence.upos)
True
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

NAMES = ("organism", "english")
ENGLISH = Path(__file__).parent / "assets" / "english.conllu"
# The English sentences come in documents of ten, and a document lies in one split.
_DOCUMENT = 10
_SPLITS = ("train", "train", "validation", "test")
_COLUMNS = 10


@dataclass(frozen=True)
class Sentence:
    """One sentence: parallel tuples with one entry a word; words are counted from 1, and 0 means none.

    words         the words as they are written, punctuation included
    heads         number of each word's syntactic head; 0 for the root
    relations     relation to the head, as Universal Dependencies name it: nsubj, obj, amod, ...; 'root' for the root
    upos          part of speech: NOUN, VERB, ...
    coreference   for a word that stands for something named before, the number of the word that names it first (most
                  often a pronoun and its noun); 0 for every other word
    target        words of the translation (organism only, else None)
    alignment     for each word of the target, the number of the word it translates (organism only, else None)
    topic         'sea', 'hill', 'city', or None where the sentence has no name (organism only, else None)

    >>> Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0)).dependents(2)
    (1,)
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    upos: tuple[str, ...]
    coreference: tuple[int, ...]
    target: tuple[str, ...] | None = None
    alignment: tuple[int, ...] | None = None
    topic: str | None = None

    def __str__(self) -> str:
        """The words, with spaces between them: what the organism's tokenizer reads."""
        return " ".join(self.words)

    def dependents(self, word: int) -> tuple[int, ...]:
        """Numbers of the words whose head is the word with this number."""
        return tuple(i for i, head in enumerate(self.heads, 1) if head == word)


def corpus(name: str | Path, split: str = "test", limit: int | None = None) -> list[Sentence]:
    """Sentences of a corpus, in order, always the same ones.

    ``name`` is ``"organism"``, ``"english"`` (320 sentences written for this project, in Universal Dependencies) or
    the path of a ``.conllu`` file. ``split`` chooses among the organism's train, validation, test and hard, and among
    the English train (160), validation (80), test (80) and all; a treebank file is one split by itself and takes no
    other value. ``limit`` is the greatest number of sentences; None means all of a file, and of the organism 1,000
    (20,000 for train).

    Raises ValueError for an unknown name or split, a limit below 1 or a broken treebank (with its line number), and
    FileNotFoundError for a path that is not there.

    >>> [len(corpus("organism", split, limit=3)) for split in ("train", "test")]
    [3, 3]
    >>> print(corpus("english", limit=1)[0])
    The last train to Leeds had already left when we arrived at the station .
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} would give no sentences; write limit=100, or None for all")
    if name == "organism":
        from headtools.organism.language import SIZES, sentences

        return list(islice(sentences(split), limit or SIZES.get(split, 1)))
    if name == "english":
        return _english(split)[:limit]
    path = Path(name)
    if path.suffix != ".conllu":
        raise ValueError(f"no corpus {str(name)!r}: there is {', '.join(NAMES)}, or the path of a .conllu file")
    if split != "test":
        raise ValueError(f"split={split!r} of {path}: a treebank file is one split; give the file of that split")
    return _read(path, limit)


def _english(split: str) -> list[Sentence]:
    """One split of the shipped treebank; of every four documents, two are for train and one for each other split."""
    if split not in (*_SPLITS, "all"):
        raise ValueError(f"no split {split!r} of english: there is train, validation, test and all")
    sentences = enumerate(_read(ENGLISH, None))
    return [s for i, s in sentences if split in ("all", _SPLITS[i // _DOCUMENT % len(_SPLITS)])]


def _read(path: Path, limit: int | None) -> list[Sentence]:
    """Sentences of a CoNLL-U file; contracted forms (1-2) and empty nodes (1.1) are no words and are passed over."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; corpus() needs the path of a .conllu file")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    out: list[Sentence] = []
    block: list[str] = []
    for i, line in enumerate([*lines, ""], 1):
        if line.strip():
            block.append(line.rstrip("\r"))
            continue
        if any(not text.startswith("#") for text in block):
            out.append(_sentence(block, path, i - len(block)))
            if len(out) == limit:
                break
        block = []
    if not out:
        raise ValueError(f"{path} holds no sentences; needed: the ten tab-separated columns of CoNLL-U")
    return out


def _sentence(block: list[str], path: Path, line: int) -> Sentence:
    """One sentence from its lines; ``line`` is the number of the first, for messages."""
    import conllu

    where = f"{path}, line {line}"
    for i, text in enumerate(block, line):
        columns = text.count("\t") + 1
        if not text.startswith("#") and columns != _COLUMNS:
            raise ValueError(f"{path}, line {i}: {columns} columns in {text[:60]!r}; needed: {_COLUMNS}, tabs between")
    try:
        parsed = conllu.parse("\n".join(block) + "\n\n")
    except (conllu.exceptions.ParseException, ValueError) as error:
        raise ValueError(f"{where}: not CoNLL-U ({error})") from error
    words = [token for token in parsed[0] if isinstance(token["id"], int)]
    n = len(words)
    if [token["id"] for token in words] != list(range(1, n + 1)):
        raise ValueError(f"{where}: words are numbered {[t['id'] for t in words][:12]}; needed: 1, 2, 3 ...")
    heads = tuple(token["head"] for token in words)
    if any(not isinstance(head, int) or not 0 <= head <= n for head in heads):
        raise ValueError(f"{where}: heads {heads}; needed: one number from 0 to {n} for each word")
    if not is_tree(heads):
        raise ValueError(f"{where}: heads {heads} are no tree; needed: one 0, and no word above itself")
    return Sentence(
        words=tuple(token["form"] for token in words),
        heads=heads,
        relations=tuple(token["deprel"] or "_" for token in words),
        upos=tuple(token["upos"] or "_" for token in words),
        coreference=tuple(_antecedent(token["misc"], n, where) for token in words),
    )


def _antecedent(misc: dict[str, str | None] | None, n: int, where: str) -> int:
    """Number after ``Coref=`` in the last column, by which a file names a pronoun's antecedent; 0 without one."""
    value = (misc or {}).get("Coref") or "0"
    if not value.isdigit() or int(value) > n:
        raise ValueError(f"{where}: Coref={value}; needed: the number of a word of the sentence, 1 to {n}")
    return int(value)


def is_tree(heads: tuple[int, ...]) -> bool:
    """Whether the heads form one tree: exactly one root, and every word under it.

    >>> is_tree((2, 0, 2)), is_tree((2, 1)), is_tree((0, 0))
    (True, False, False)
    """
    if list(heads).count(0) != 1:
        return False
    for start in range(1, len(heads) + 1):
        word = start
        for _ in heads:
            word = heads[word - 1]
            if word == 0:
                break
        if word != 0:
            return False
    return True
