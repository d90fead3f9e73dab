"""Times of works that take turns in one process, and what is told of them.

A busy machine changes its mind from second to second, so works that are compared run right after each other, round
after round in changing order, and what is reported is the median over rounds of the ratio of their CPU times with its
quartiles. Wall time is never read.
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each work in each round, after one round to warm up; every other round runs backwards.

    >>> order = []
    >>> taken = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    >>> "".join(order), len(taken["a"])
    ('ababba', 2)
    """
    for work in works.values():
        work()
    names = list(works)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for n in range(rounds):
        for name in names if n % 2 == 0 else names[::-1]:
            taken[name].append(seconds(works[name]))
    return taken


def ratio(times: Sequence[float], unit: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratios of one round each.

    >>> ratio([2.0, 4.0, 6.0], [1.0, 1.0, 1.0])
    {'ratio': 4.0, 'low': 2.0, 'high': 6.0}
    >>> ratio([2.0], [1.0])
    {'ratio': 2.0, 'low': 2.0, 'high': 2.0}
    """
    each = [a / b for a, b in zip(times, unit, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    return {"ratio": middle, "low": low, "high": high}


def row(taken: Mapping[str, Sequence[float]], work: str, unit: str, **told: object) -> dict:
    """One row of a table: what was measured against which unit, in seconds and as a ratio, and what is told beside.

    ``told`` must have ``model``, and ``counted`` with ``why``: the bound that arithmetic sets, and where it comes from.
    It may have ``bound``, what the ratio may be at most (None: no promise), and ``difference`` with ``tolerance``.
    """
    return {
        "work": work,
        "unit": unit,
        **told,
        **ratio(taken[work], taken[unit]),
        "rounds": len(taken[work]),
        "s": statistics.median(taken[work]),
        "unit_s": statistics.median(taken[unit]),
    }


def spread(row: Mapping) -> str:
    """A ratio with its quartiles, as tables show it; without where there was one round.

    >>> spread({"ratio": 2.0312, "low": 1.9, "high": 2.2}), spread({"ratio": 70.61, "low": 70.2, "high": 71.44})
    ('2.03 (1.90 to 2.20)', '70.6 (70.2 to 71.4)')
    """
    digits = 1 if row["ratio"] >= 10 else 2
    if row.get("rounds") == 1:
        return f"{row['ratio']:.{digits}f} (once)"
    return f"{row['ratio']:.{digits}f} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"


def markdown(rows: Sequence[Mapping]) -> str:
    """The rows as a table."""
    lines = ["| work | model | unit | counted | ratio (quartiles) | CPU s |", "|" + "---|" * 6]
    for r in rows:
        counted = "not" if r["counted"] is None else f"{r['counted']:.2f}"
        cells = (r["work"], r["model"], r["unit"], f"{counted}: {r['why']}", spread(r), f"{r['s']:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def over(rows: Sequence[Mapping]) -> list[str]:
    """What costs more than its script promises, or is not equal to what it must be equal to.

    >>> over([{"work": "w", "model": "m", "ratio": 1.06, "bound": 1.05}, {"ratio": 3.0, "bound": None}])
    ['w, m: 1.060, the bound is 1.05']
    >>> over([{"work": "w", "model": "m", "ratio": 0.5, "difference": 0.25, "tolerance": 0.125}])
    ['w, m: differs by 2.5e-01']
    """
    dear = [row for row in rows if row.get("bound") and row["ratio"] > row["bound"]]
    wrong = [row for row in rows if row.get("tolerance") and row["difference"] > row["tolerance"]]
    return [f"{row['work']}, {row['model']}: {row['ratio']:.3f}, the bound is {row['bound']}" for row in dear] + [
        f"{row['work']}, {row['model']}: differs by {row['difference']:.1e}" for row in wrong
    ]


def options(doc: str, rounds: int, **choices: list[str]) -> Namespace:
    """Read what every benchmark understands: how many rounds, where the JSON goes, and whether it is a smoke run.

    ``choices``: more options, each with what can be named after it; all, where none is.
    """
    parser = ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, help="write the rows there as JSON")
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds: does it run at all?")
    for name, known in choices.items():
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known)
    given = parser.parse_args()
    if given.quick:
        given.rounds = 2
    return given


def tell(rows: list[dict], path: Path | None) -> None:
    """Print the table, and write the rows."""
    print(markdown(rows))
    if path:
        path.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
