"""Run combinations from the command line.

python -m tests.differential --count 500                      a random seed, printed
python -m tests.differential --seed 7 --measure gradient      one measure
python -m tests.differential --seed 7 --count 1 --measure gradient --architecture bert --wrapping checkpointing
"""

import argparse
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HEADTOOLS_PROGRESS"] = "off"

from ..heads.zoo import ALL
from .combinations import CHOICES
from .measures import MEASURES
from .run import FAILURES, run, sample, summary, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=len(MEASURES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--measure", choices=list(MEASURES), action="append")
    parser.add_argument("--architecture", choices=ALL)
    parser.add_argument("--json", help="a file to write all outcomes to")
    parser.add_argument("--verbose", action="store_true", help="say how each combination ended")
    for name, options in CHOICES.items():
        parser.add_argument(f"--{name}", choices=options)
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    given = {name: getattr(asked, name) for name in ("architecture", *CHOICES)}
    outcomes, end = [], time.monotonic() + asked.seconds
    for combination in sample(asked.count, asked.seed, asked.measure, **given):
        if time.monotonic() > end:
            break
        outcomes.append(run(combination))
        if asked.verbose or outcomes[-1].end in FAILURES:
            print(outcomes[-1], flush=True)
    print(summary(outcomes))
    if asked.json:
        write(outcomes, asked.json)
    return int(any(outcome.end in FAILURES for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
