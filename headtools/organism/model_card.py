"""The organism's model card, to read in a notebook.

>>> print(str(model_card())[:14])
# The organism
"""

from dataclasses import dataclass

from headtools.organism._checksums import ASSETS

FILE = ASSETS / "README.md"


@dataclass(frozen=True)
class Card:
    """A Markdown text, which a notebook renders and ``print`` shows as it is."""

    text: str

    def __str__(self) -> str:
        """Return the Markdown."""
        return self.text

    def __repr__(self) -> str:
        """Return the first line, which keeps lists of cards short."""
        return f"Card({self.text.splitlines()[0]!r})"

    def _repr_markdown_(self) -> str:
        return self.text


def model_card() -> Card:
    """Return the organism's model card: its language, training, scores with intervals, roles of heads and limits.

    >>> model_card()
    Card('# The organism')
    """
    text = FILE.read_text(encoding="utf-8")
    # The Hub's metadata at the top, between two lines of dashes, is left out.
    return Card(text.split("---\n", 2)[2].lstrip() if text.startswith("---\n") else text)
