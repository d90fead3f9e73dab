"""A sentence with gold annotation: words, heads, relations, parts of speech, coreference."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sentence:
    """One sentence: parallel tuples with one entry a word. Where an entry names a word, it counts from 1; 0 is none.

    words         the words as they are written, punctuation included
    heads         number of each word's syntactic head; 0 for the root
    relations     relation to the head in Universal Dependencies, with its subtype: nsubj, nsubj:pass ...; 'root'
    upos          part of speech: NOUN, VERB, ...
    coreference   for a word that refers to something mentioned before, most often a pronoun, the number of the word
                  that names it first; 0 for every other word

    Of the organism alone, else None:

    target        words of the translation
    alignment     for each word of the target, the number of the word it translates
    topic         'sea', 'hill', 'city', or None where the sentence has no name
    phenomena     for each word of the target, what else it depends on (``headtools.organism.translation.PHENOMENA``)

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
    phenomena: tuple[tuple[str, ...], ...] | None = None

    def __str__(self) -> str:
        """The words, with spaces between them: what the organism's tokenizer reads."""
        return " ".join(self.words)

    @property
    def universal(self) -> tuple[str, ...]:
        """The relations without their subtypes: nsubj for nsubj:pass, the same names in every language.

        >>> Sentence(("was", "seen"), (2, 0), ("aux:pass", "root"), ("AUX", "VERB"), (0, 0)).universal
        ('aux', 'root')
        """
        return tuple(relation.split(":")[0] for relation in self.relations)

    def dependents(self, word: int) -> tuple[int, ...]:
        """Numbers of the words whose head is the word with this number."""
        return tuple(i for i, head in enumerate(self.heads, 1) if head == word)


def is_tree(heads: tuple[int, ...]) -> bool:
    """Whether the heads form one tree: exactly one root, and every word under it.

    >>> is_tree((2, 0, 2)), is_tree((2, 1)), is_tree((0, 0))
    (True, False, False)
    """
    dependents: list[list[int]] = [[] for _ in range(len(heads) + 1)]
    for word, head in enumerate(heads, 1):
        dependents[head].append(word)
    # Down from the root: words in a cycle are never reached.
    n_reached, pending = 0, [*dependents[0]]
    while pending:
        n_reached += 1
        pending += dependents[pending.pop()]
    return len(dependents[0]) == 1 and n_reached == len(heads)
