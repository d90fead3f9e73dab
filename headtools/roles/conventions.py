"""The choices that a role score depends on: :class:`Conventions`, by default those of Voita et al. (2019)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Conventions:
    """How argmax attention and weights are counted.

    With ``renormalise`` the weights of the words, and so confidence, are divided by the row's sum over the words (as in
    TransformerLens); uniform attention then has those keys too, entropy and distance the full row.

    The rest is fixed. The query itself is a key. Scores are between words: weights to the pieces of a word are summed,
    those from them averaged (Clark et al. 2019, section 4.1). Special tokens (BOS and EOS tokens, [CLS], [SEP]) are no
    queries, and no keys of the argmax; weights, entropies and distances include them, since they are part of the row. A
    query that cannot see its target (no next word, or in a decoder a later word) is not counted. In cross-attention a
    target word queries from the position that writes it. Padding is never a key and never a query.
    """

    renormalise: bool = False


VOITA = Conventions()
