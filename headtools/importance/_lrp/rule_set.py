"""Which rule each kind of operation follows, and the sets of rules that have a name.

Sources: Bach et al. 2015 (10.1371/journal.pone.0130140) for "epsilon" and "alphabeta"; Achtibat et al. 2024
(arXiv:2402.05602) for "attnlrp"; Voita et al. 2019 (arXiv:1905.09418), appendix A, for "voita" and "ratio".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """How relevance goes back through each kind of operation.

    - ``linear``: maps with a weight, convolutions included. "zero" shares R(y) among the x_i in proportion to
      x_i w_i / y; "epsilon" adds ``epsilon`` to abs(y); "ratio" leaves biases out of y, so that they get nothing, and
      passes relevance through layer normalisations unchanged; "alphabeta" gives ``alpha`` to the positive terms x_i w_i
      and the rest to the negative ones.
    - ``sums``: additions and the mixing of values by attention follow alpha-beta too, and a layer normalisation passes
      relevance on unchanged; otherwise all of them share in proportion.
    - ``attention``: "through" follows softmax by its gradient and halves the relevance of every product of two
      activations; "constant" holds attention weights constant; "ratio" passes relevance through softmax unchanged, and
      the factors of a product share in proportion to their size.
    - ``others``: normalisations divide by a constant, activation functions pass relevance on unchanged, products are
      halved, and an operation without a rule follows its tangent (``tangent``). False makes all of them, and attention,
      plain gradients.
    """

    linear: str = "zero"
    alpha: float = 1.0
    epsilon: float = 1e-6
    sums: bool = False
    attention: str = "through"
    others: bool = True

    def __post_init__(self) -> None:
        linear, attention = ("zero", "epsilon", "ratio", "alphabeta"), ("through", "constant", "ratio")
        if self.linear not in linear or self.attention not in attention:
            raise ValueError(
                'linear is "zero", "epsilon", "ratio" or "alphabeta" and attention "through", "constant" or "ratio"; '
                f"got {self.linear!r} and {self.attention!r}"
            )
        if not self.epsilon > 0 or not abs(self.alpha) < float("inf"):
            raise ValueError(f"epsilon must be positive and alpha finite, got {self.epsilon} and {self.alpha}")


NAMED = {
    "attnlrp": Rules(),
    "cp": Rules(attention="constant"),
    "epsilon": Rules(linear="epsilon", attention="constant"),
    "alphabeta": Rules(linear="alphabeta", alpha=0.5, attention="constant"),
    "zplus": Rules(linear="alphabeta", alpha=1.0, sums=True, attention="constant"),
    "voita": Rules(linear="alphabeta", alpha=0.5, sums=True, attention="constant"),  # their code, since November 2020
    "ratio": Rules(linear="ratio", attention="ratio"),  # their appendix A, as printed: unstable where parts cancel
    "gradient": Rules(others=False),
}


def named(rules: str | Rules) -> Rules:
    """Return the rules of that name; ``Rules`` are returned as they are."""
    if isinstance(rules, Rules):
        return rules
    if rules not in NAMED:
        raise ValueError(f"rules is one of {', '.join(NAMED)}, or your own Rules(...); got {rules!r}")
    return NAMED[rules]
