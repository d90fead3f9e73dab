"""What recording costs, against transformers' own way to see attention: ``make bench``.

    python tools/bench/recording.py [--rounds 9] [--json FILE] [--quick]

The bound. Maps are numbers that eager attention computes anyway, and z is what the output projection reads in every
kernel: keeping either is keeping a reference, no operation at all. So the count is 1.00 of the forward pass with the
same attention: eager for maps, sdpa for z. transformers' ``output_attentions=True`` under eager attention keeps maps
and nothing else; a plain pass under sdpa is what maps cost altogether, since fused attention never has them.
Statistics that fold maps away while the model runs (``reduce=``) read each number of each map once: for T tokens and
heads of width d that is one operation against the 4 d of q k' and a v, at most 0.4 % of attention for d = 64.
"""

from __future__ import annotations

from collections.abc import Callable

import subjects
import timing
import torch
from gradient import plain
from subjects import Subject

import headtools as ht

WHY = "references to what the pass computes"
UNITS = {
    "record z": "plain forward",
    "record maps": "eager forward",
    "output_attentions": "eager forward",
    "greatest weight of each row, folded": "eager forward",
}


def under(attention: str, work: Callable[[Subject], object]) -> Callable[[Subject], object]:
    """The work with the model switched to this kind of attention."""

    def step(subject: Subject) -> object:
        subject.model.set_attn_implementation(attention)
        return work(subject)

    return step


def recorded(*want: str, reduce: Callable | None = None) -> Callable[[Subject], object]:
    """A pass under ``ht.record``."""

    @torch.no_grad()
    def step(subject: Subject) -> object:
        with ht.record(subject.model, want=want, accumulate=reduce) as seen:
            subject.model(**subject.batch)
        return seen

    return step


@torch.no_grad()
def asked(subject: Subject) -> object:
    """A pass that returns its maps, as transformers does it."""
    return subject.model(**subject.batch, output_attentions=True)


def greatest(_site: ht.Site, seen: object, before: torch.Tensor | None) -> torch.Tensor:
    """The mean greatest weight of a query's row, for each head, added to what earlier calls gave."""
    found = seen.maps.amax(-1).mean((0, 2))
    return found if before is None else before + found


WORKS = {
    "plain forward": under("sdpa", plain),
    "record z": under("sdpa", recorded("z")),
    "eager forward": under("eager", plain),
    "record maps": under("eager", recorded("maps")),
    "output_attentions": under("eager", asked),
    "greatest weight of each row, folded": under("eager", recorded("maps", reduce=greatest)),
}


def measure(subject: Subject, rounds: int) -> list[dict]:
    """One row for each way to record."""
    taken = timing.interleaved({name: lambda w=work: w(subject) for name, work in WORKS.items()}, rounds)
    subject.model.set_attn_implementation("sdpa")
    row = {"model": subject.name, "counted": 1.0, "why": WHY}
    return [timing.row(taken, name, unit, **row) for name, unit in UNITS.items()]


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=9)
    torch.set_num_threads(1)
    sizes = {kind: subjects.size_of(kind, "tiny" if given.quick else "full") for kind in subjects.MAKERS}
    rows = [row for kind, size in sizes.items() for row in measure(subjects.make(kind, size), given.rounds)]
    timing.tell(rows, given.json)


if __name__ == "__main__":
    main()
