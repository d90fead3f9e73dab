"""Gates that learn to be exactly 0 or 1: the Hard Concrete distribution (Louizos et al. 2018, arXiv:1712.01312).

A gate is a number in [0, 1] drawn anew at each training step. Its distribution has point masses at exactly 0 and
exactly 1, whose sizes follow from one trained number, log alpha; so the number of open gates has an expectation and a
gradient. In the paper's symbols ``temperature`` is beta and ``stretch`` is (gamma, zeta), here (low, high).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from headtools.heads._devices import without_autocast
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site, Sites

START = 2.2  # P(gate = 0) = .05, so that a trained model is hardly disturbed at first


class HardConcrete(nn.Module):
    """One random gate for every head of ``over``, each with its own trained log alpha (Louizos et al. 2018).

    With u uniform in (0, 1), a gate is ``sigmoid((logit(u) + log alpha) / temperature) * (high - low) + low``, clipped
    to [0, 1], where ``stretch = (low, high)`` goes beyond both ends (eq. 10, 11). ``over``: ``sites(model)``, part of
    it, or {("encoder", 2): number of heads}. ``start``: log alpha of every gate, or {("encoder", 2): (H,)}.
    Temperature and stretch are those of Voita et al. 2019 (their code). ``log_alpha`` (n_heads,) holds all sites;
    probabilities have its shape, and most can be asked for another ``log_alpha``.

    Raises ``ValueError`` for arguments outside these ranges, no heads, or a start that does not fit.

    >>> gates = HardConcrete({("encoder", 0): 2, ("encoder", 1): 1}, start=2.0)
    >>> [round(p, 3) for p in (gates.p_zero()[0].item(), gates.p_one()[0].item(), gates.expected_l0().item())]
    [0.058, 0.77, 2.827]
    >>> gates.sample(generator=torch.Generator().manual_seed(0))["encoder", 0].shape
    torch.Size([2])
    """

    def __init__(
        self,
        over: Sites | Iterable[Site] | Mapping[tuple, int],
        *,
        temperature: float = 0.33,
        stretch: tuple[float, float] = (-0.1, 1.1),
        start: float | Mapping[tuple, Tensor] = START,
    ) -> None:
        super().__init__()
        low, high = stretch
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}; 0.33 or 2/3 are usual")
        if not low < 0 < 1 < high:
            raise ValueError(f"stretch must reach beyond 0 and 1 on both sides, such as (-0.1, 1.1), got {stretch}")
        self.temperature, self.stretch = float(temperature), (float(low), float(high))
        self.sizes = dict(over) if isinstance(over, Mapping) else {s.key: s.heads for s in over if not s.empty}
        if not self.sizes or min(self.sizes.values()) < 1:
            raise ValueError(f'no heads to gate in {over!r}; pass sites(model), its ["encoder"] or {{key: heads}}')
        self.heads = [(*key, head) for key, size in self.sizes.items() for head in range(size)]  # as in ``log_alpha``
        if not isinstance(start, Mapping):
            flat = torch.full((sum(self.sizes.values()),), float(start))
        else:
            shapes = {key: tuple(value.shape) for key, value in start.items()}
            if shapes != {key: (size,) for key, size in self.sizes.items()}:
                raise ValueError(f"start must give a tensor (heads,) for each of {self.sizes}, got {shapes}")
            flat = torch.cat([start[key].detach().float() for key in self.sizes])
        if not flat.isfinite().all():
            raise ValueError("start holds NaN or infinity")
        self.log_alpha = nn.Parameter(flat)

    # --- the distribution -------------------------------------------------------------------------------------------

    def p_zero(self, log_alpha: Tensor | None = None) -> Tensor:
        """Return P(gate = 0), the head is off: sigmoid(temperature * log(-low / high) - log alpha)."""
        low, high = self.stretch
        return torch.sigmoid(self.temperature * math.log(-low / high) - self._alpha(log_alpha))

    def p_one(self, log_alpha: Tensor | None = None) -> Tensor:
        """Return P(gate = 1), the head is fully on: sigmoid(log alpha - temperature * log((1 - low) / (high - 1)))."""
        low, high = self.stretch
        return torch.sigmoid(self._alpha(log_alpha) - self.temperature * math.log((1 - low) / (high - 1)))

    def p_open(self, log_alpha: Tensor | None = None) -> Tensor:
        """Return P(gate > 0), as a sigmoid of its own (Louizos et al. 2018, eq. 12)."""
        low, high = self.stretch
        # Not 1 - p_zero(): that is rounded to 1, or loses its last digits, where P(0) is small.
        return torch.sigmoid(self._alpha(log_alpha) - self.temperature * math.log(-low / high))

    def saturated(self, at: float = 0.9) -> Tensor:
        """Return which gates are 0, or are 1, with a probability of at least ``at``: a bool for each gate."""
        return torch.maximum(self.p_zero(), self.p_one()) >= at

    def expected_l0(self, log_alpha: Tensor | None = None) -> Tensor:
        """Return the expected number of gates that are not 0: the term that the penalty multiplies."""
        return self.p_open(log_alpha).sum(-1)

    @without_autocast
    def mean(self) -> Tensor:
        """Return the expected gate, the integral of P(gate > x) over [0, 1] (by 40-point Gauss-Legendre quadrature)."""
        # Smooth on [0, 1], since the stretch keeps logit(s) finite: a quadrature of few points will do.
        points, weights = np.polynomial.legendre.leggauss(40)
        x = torch.as_tensor((points + 1) / 2).to(self.log_alpha)
        survival = torch.sigmoid(self.log_alpha.unsqueeze(-1) - self.temperature * torch.logit(self._unstretched(x)))
        return survival @ torch.as_tensor(weights / 2).to(self.log_alpha)

    def density(self, x: Tensor) -> Tensor:
        """Return the density at 0 < x < 1, shape (*x, *log_alpha), and 0 elsewhere, also at the point masses.

        It integrates to 1 - P(0) - P(1).
        """
        low, high = self.stretch
        x = x.to(self.log_alpha).reshape(*x.shape, *[1] * self.log_alpha.dim())
        s = self._unstretched(x.clamp(0, 1))  # the concrete variable in (0, 1), before stretching
        t = self.temperature * torch.logit(s) - self.log_alpha
        value = self.temperature * torch.sigmoid(t) * torch.sigmoid(-t) / (s * (1 - s)) / (high - low)
        return torch.where((x > 0) & (x < 1), value, 0.0)

    def _alpha(self, log_alpha: Tensor | None) -> Tensor:
        return self.log_alpha if log_alpha is None else torch.as_tensor(log_alpha, dtype=self.log_alpha.dtype)

    def _unstretched(self, x: Tensor) -> Tensor:
        """Undo the stretch of eq. 10."""
        low, high = self.stretch
        return (x - low) / (high - low)

    # --- gates for a model ------------------------------------------------------------------------------------------

    def sample(
        self, rows: int | None = None, *, per: str = "batch", generator: torch.Generator | None = None
    ) -> dict[tuple, Tensor]:
        """Return one draw of all gates, {site: (H,)}, differentiable in log alpha and ready for ``gates(model, ...)``.

        ``per="batch"`` draws every gate once (Voita et al. 2019), ``per="example"`` once for each of ``rows`` examples:
        {site: (rows, H)}.

        Raises ``ValueError`` for another ``per`` or where ``rows`` is needed and missing.
        """
        if per not in ("batch", "example"):
            raise ValueError(f'per must be "batch" or "example", got {per!r}')
        if rows is None and per == "example":
            raise ValueError("got no number of examples: write sample(rows=len(batch['input_ids']), ...)")
        n = self.log_alpha.shape[-1]
        # drawn on the CPU, so that a seed means the same gates on every device
        u = torch.rand((rows, n) if per == "example" else (n,), generator=generator).to(self.log_alpha)
        return self.split(self.draw(u))

    def draw(self, u: Tensor, log_alpha: Tensor | None = None) -> Tensor:
        """Return the gates for uniform numbers ``u``, its quantiles (Louizos et al. 2018, eq. 10, 11)."""
        low, high = self.stretch
        s = torch.sigmoid((torch.logit(u) + self._alpha(log_alpha)) / self.temperature)  # logit: log u - log(1 - u)
        return (s * (high - low) + low).clamp(0, 1)  # stretched (eq. 10) and clipped (eq. 11)

    def test_gates(self, log_alpha: Tensor | None = None) -> Tensor:
        """Return the gates that are used after training, in the shape of log alpha: 1 where P(1) > P(0), else 0.

        That is how pruning leaves the model (Voita et al. 2019, footnote 7).
        """
        alpha, (low, high) = self._alpha(log_alpha).detach(), self.stretch
        # P(1) > P(0), solved for log alpha; rounded, so that a symmetric stretch has its threshold at exactly 0
        threshold = round(self.temperature / 2 * math.log((1 - low) / (high - 1) * -low / high), 9)
        return (alpha > threshold).to(alpha)

    def split(self, flat: Tensor) -> dict[tuple, Tensor]:
        """Divide a tensor (..., n_heads) by site: {("encoder", 2): (..., H)}.

        Raises ``ValueError`` for another number of heads.
        """
        if flat.shape[-1] != sum(self.sizes.values()):
            raise ValueError(f"there are {sum(self.sizes.values())} gates, got a tensor of shape {tuple(flat.shape)}")
        return dict(zip(self.sizes, flat.split(list(self.sizes.values()), dim=-1), strict=True))

    def open_heads(self) -> list[tuple]:
        """Return the heads whose gate is 1 by the rule of Voita et al. 2019."""
        return [head for head, gate in zip(self.heads, self.test_gates().tolist(), strict=True) if gate]

    def scores(self) -> HeadScores:
        """Return log alpha as a score for each head: the higher, the more its gate resisted the penalty."""
        return HeadScores(self.split(self.log_alpha.detach().clone()), name="log alpha")
