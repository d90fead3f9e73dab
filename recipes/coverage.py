"""How often do nominal 95 % intervals of a mean hold it? ``python -m recipes.coverage``

Samples of n examples are drawn from populations whose mean is known: distributions, and the slopes (``ht.gradient``)
and leave-one-out costs of the organism's encoder heads on 2,500 fresh sentences (kept in ``--rows``; measuring them
takes some minutes). Prints the coverage of five kinds of intervals, how many scores few examples carry
(``HeadScores.few``), and how often the p of two equally good systems is below .05. ``--write`` puts the first table
into the docstring of ``headtools/heads/intervals.py``.
"""

import math
import random
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.special import ndtr, ndtri, stdtrit
from torch import Tensor

import headtools as ht
from headtools.heads import intervals
from headtools.heads.intervals import bootstrap, carriers, percentiles, resample_counts
from headtools.heads.scores import HeadScores
from headtools.organism.batches import batches
from headtools.organism.language import sentences

SIZES = (5, 10, 20, 50, 99, 100, 200, 500, 2_000)
SAMPLES, HEAD_SAMPLES = 2_000, 100  # of a distribution, and of the organism's sentences
POPULATION, STREAM = 2_500, 30  # fresh sentences
MEASURES = ("gradient", "ablation")
POOR, GOOD = 0.9, 0.925  # coverage of a head below which the flag should be up, and from which it should be down
ROWS = Path("build/coverage")
Sample = Callable[[int, torch.Generator], tuple[Tensor, Tensor | float]]  # n -> samples (n, columns), their true mean


def distribution(draw: Callable[[Tensor, Tensor], Tensor], mean: float) -> Sample:
    """Return samples of a function of two uniform numbers, in float64."""

    def sample(n: int, generator: torch.Generator) -> tuple[Tensor, float]:
        u, v = (torch.rand(n, SAMPLES, generator=generator, dtype=torch.double).clamp_min(1e-300) for _ in range(2))
        return draw(u, v), mean

    return sample


def of_heads(rows: Tensor) -> Sample:
    """Return samples of rows (sentences, H), drawn with replacement: columns are heads, sample by sample."""

    def sample(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(len(rows), (n, HEAD_SAMPLES), generator=generator)
        return rows[drawn].flatten(1), rows.mean(0).repeat(HEAD_SAMPLES)

    return sample


DISTRIBUTIONS: dict[str, Sample] = {
    "normal": distribution(lambda u, v: torch.special.ndtri(u), 0.0),
    "exponential": distribution(lambda u, v: -u.log(), 1.0),
    "lognormal": distribution(lambda u, v: torch.special.ndtri(u).exp(), math.exp(0.5)),
    "|t|, 3 degrees": distribution(
        lambda u, v: torch.from_numpy(stdtrit(3, (1 + u.numpy()) / 2)), 2 * math.sqrt(3) / math.pi
    ),
    "0 or 1, rate .3": distribution(lambda u, v: (u < 0.3).double(), 0.3),
    "0 or 1, rate .1": distribution(lambda u, v: (u < 0.1).double(), 0.1),
    "95 % zeros": distribution(lambda u, v: (v < 0.05) * -u.log(), 0.05),
}


def encoder_rows(folder: Path) -> dict[str, Tensor]:
    """Return the rows (2,500, 48) of two measures of the organism's encoder heads, measured once."""
    found = {}
    for name in MEASURES:
        file = folder / f"{name}.safetensors"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            fresh = batches(list(islice(sentences("test", stream=STREAM), POPULATION)))
            getattr(ht, name)(ht.load()[0], fresh, sites=["encoder"]).save(file)
        found[name] = torch.cat(list(HeadScores.load(file).rows.values()), 1).double()
    return found


def other_methods(rows: Tensor, level: float = 0.95) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the bounds of the mean of rows (n, columns) by the methods that were not chosen."""
    n, mean = len(rows), rows.mean(0)
    away = rows - mean
    error = rows.std(0) / math.sqrt(n)
    counts = torch.cat(list(resample_counts(n, 1000)))  # (draws, n)
    shift = counts @ away / n
    resample_error = ((counts @ away.square() / n - shift.square()).clamp_min(0) / (n - 1)).sqrt()
    t = (shift / torch.maximum(resample_error, error / 4)).nan_to_num(0, 0, 0)
    below, above = percentiles(t.T, level)
    low, high = percentiles(shift.T, level)
    student = float(stdtrit(n - 1, (1 + level) / 2))
    # BCa (Efron 1987): percentiles moved by the median's bias and by the acceleration, a sixth of the mean's skewness
    skew = (away.pow(3).mean(0) / away.square().mean(0).pow(1.5)).nan_to_num(0, 0, 0)
    lower = ((shift < 0).double() + (shift == 0).double() / 2).mean(0).clamp(5e-4, 1 - 5e-4)
    bias, acceleration = ndtri(lower.numpy()), skew.numpy() / (6 * math.sqrt(n))
    ends = []
    for z in ndtri([(1 - level) / 2, (1 + level) / 2]):
        place = ndtr(bias + (bias + z) / (1 - acceleration * (bias + z)))
        ordered = np.sort(shift.numpy(), 0)
        ends.append(torch.from_numpy(np.take_along_axis(ordered, (place * 999).round().astype(int)[None], 0)[0]))
    return {
        "percentile": (mean + low, mean + high),
        "Student's t": (mean - student * error, mean + student * error),
        "bootstrap-t": (mean - above * error, mean - below * error),
        "BCa": (mean + ends[0], mean + ends[1]),
    }


def coverage(sample: Sample, n: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Return which intervals of samples of n hold the mean, by method, and which scores few examples carry."""
    rows, mean = sample(n, torch.Generator().manual_seed(seed + n))
    ends = {"here": bootstrap(rows)} | other_methods(rows)
    few = carriers(rows) <= max(1, n / 10)
    return {method: (low <= mean + 1e-9) & (mean - 1e-9 <= high) for method, (low, high) in ends.items()}, few


def of_flag(covered: Tensor, few: Tensor) -> dict[str, float]:
    """Return how many scores are flagged, the coverage of those that are and are not, hits and false alarms.

    A hit is a flag at a head whose intervals cover in less than ``POOR`` of the samples, a false alarm one at a head
    whose intervals cover in ``GOOD`` or more.
    """
    of_head, flags = covered.view(HEAD_SAMPLES, -1).double().mean(0), few.view(HEAD_SAMPLES, -1).double()
    return {
        "flagged": few.double().mean().item(),
        "where flagged": covered[few].double().mean().item(),
        "where not": covered[~few].double().mean().item() if (~few).double().mean() > 0.005 else math.nan,
        "hits": flags[:, of_head < POOR].mean().item(),
        "false alarms": flags[:, of_head >= GOOD].mean().item(),
    }


def table(populations: dict[str, Sample], sizes: Sequence[int] = SIZES) -> dict[str, list[float]]:
    """Return {what: a fraction of each size}: coverage by population and method, and what the flag says.

    >>> list(table({"normal": DISTRIBUTIONS["normal"]}, sizes=[5]))[:3]
    ['normal, here', 'normal, percentile', "normal, Student's t"]
    """
    rows: dict[str, list[float]] = {}
    for name, sample in populations.items():
        for n in sizes:
            covered, few = coverage(sample, n)
            numbers = {method: hit.double().mean().item() for method, hit in covered.items()}
            numbers |= of_flag(covered["here"], few) if name in MEASURES else {"flagged": few.double().mean().item()}
            for what, number in numbers.items():
                rows.setdefault(f"{name}, {what}", []).append(number)
    return rows


def lines(rows: dict[str, list[float]], sizes: Sequence[int] = SIZES) -> str:
    """Return a table of percentages, as the docstring has it."""
    width = max(map(len, rows))
    rule = " ".join(["=" * width, *["====="] * len(sizes)])
    body = [
        (name.ljust(width) + "".join("" if math.isnan(x) else f"{100 * x:6.0f}" for x in numbers))
        for name, numbers in rows.items()
    ]
    return "\n".join([rule, f"{'n':{width}s}" + "".join(f"{n:>6,}" for n in sizes), rule, *body, rule])


def shown(rows: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the rows of the docstring."""
    also = ["95 % zeros, percentile", "gradient, flagged", "ablation, flagged", "ablation, where not"]
    return {name.removesuffix(", here"): of for name, of in rows.items() if name.endswith(", here") or name in also}


def p_of_equals(n: int, runs: int = 1_000) -> float:
    """Return how often p is below .05 for two translators that get one word in seven wrong, each its own."""
    rng, words, small = random.Random(n), "abcdefghijkl", 0
    for _ in range(runs):
        right = [[rng.choice(words) for _ in range(rng.randint(4, 10))] for _ in range(n)]
        one, two = (
            [" ".join(rng.choice(words) if rng.random() < 0.15 else word for word in some) for some in right]
            for _ in range(2)
        )
        small += ht.paired_bootstrap(one, two, [" ".join(some) for some in right]).p < 0.05
    return small / runs


def main(
    rows: Annotated[Path, typer.Option(help="folder of the organism's rows")] = ROWS,
    write: Annotated[bool, typer.Option(help="into the docstring of intervals.py")] = False,
) -> None:
    """Simulate and print, and with ``--write`` put the first table into the docstring."""
    torch.set_num_threads(1)
    found = table(DISTRIBUTIONS | {name: of_heads(of_measure) for name, of_measure in encoder_rows(rows).items()})
    print(lines(shown(found)), lines(found), sep="\n\n")
    if write:
        file = Path(intervals.__file__)
        text = file.read_text(encoding="utf-8")
        first, last = text.index("====="), text.rindex("=====\n") + 5
        file.write_text(text[:first] + lines(shown(found)) + text[last:], encoding="utf-8")
    for n in (20, 100, 300):
        print(f"two equal systems, {n} sentences: p < .05 in {p_of_equals(n):.3f} of 1,000 pairs")


if __name__ == "__main__":
    typer.run(main)
