"""The organism's model card, to read in a notebook.

>>> print(model_card()[:14])
# The organism
"""

from headtools.organism._checksums import ASSETS


class Card(str):
    """A Markdown text, which a notebook renders and ``print`` shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the first line, which keeps lists of cards short."""
        return f"Card({self.splitlines()[0]!r})"

    def _repr_markdown_(self) -> str:
        return str(self)


def model_card() -> Card:
    """Return the organism's model card: its language, training, scores with intervals, roles of heads and limits.

    >>> model_card()
    Card('# The organism')
    """
    text = (ASSETS / "README.md").read_text(encoding="utf-8")
    # The Hub's metadata at the top, between two lines of dashes, is left out.
    return Card(text.split("---\n", 2)[2].lstrip() if text.startswith("---\n") else text)
