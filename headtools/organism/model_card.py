"""The organism's model card, to read in a notebook.

>>> print(str(card())[:14])
# The organism
"""

from dataclasses import dataclass

from headtools.organism._checksums import ASSETS

FILE = ASSETS / "README.md"


@dataclass(frozen=True)
class Card:
    """A text in Markdown that a notebook shows set in type, and ``print`` as it is written."""

    text: str

    def __str__(self) -> str:
        """The text as it is written."""
        return self.text

    def __repr__(self) -> str:
        """The first line, so that a list of cards stays short."""
        return f"Card({self.text.splitlines()[0]!r})"

    def _repr_markdown_(self) -> str:
        return self.text


def card() -> Card:
    """The model card of the organism: its language, training, scores with intervals, roles of heads and limits.

    >>> card()
    Card('# The organism')
    """
    text = FILE.read_text(encoding="utf-8")
    return Card(text.split("---\n", 2)[2].lstrip() if text.startswith("---\n") else text)
