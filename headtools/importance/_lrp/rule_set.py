"""Which rule each kind of operation follows: the sets of rules that have a name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """How relevance goes back through each kind of operation.

    ``linear``: maps with a weight, convolutions included. "zero" shares R(y) in proportion to x_i w_i / y; "epsilon"
    adds ``epsilon`` to the size of y; "ratio" leaves biases out of y, so that they get nothing, and passes over layer
    normalisations; "alphabeta" gives ``alpha`` to the parts of positive sign and the rest to those of negative sign.
    ``sums``: additions and the mixing of values by attention follow alpha-beta too, and a layer
    normalisation passes relevance on unchanged; otherwise all of them are shared in proportion.
    ``attention``: "through" follows softmax by its gradient and halves the relevance of every product of two
    activations; "constant" holds the weights of attention fixed; "ratio" passes over softmax and gives factors of a
    product shares in proportion to their size. ``others``: normalisations divide by a constant,
    activation functions pass relevance on unchanged, products are halved, and an operation without a rule shares by its
    tangent (``tangent``); without it all of them, and attention, are plain gradients.
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
            raise ValueError(f"epsilon is positive and alpha a number, got {self.epsilon} and {self.alpha}")


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


def named(which: str | Rules) -> Rules:
    """Return the rules of that name, or those given."""
    if isinstance(which, Rules):
        return which
    if which not in NAMED:
        raise ValueError(f"rules is one of {', '.join(NAMED)}, or your own Rules(...); got {which!r}")
    return NAMED[which]
