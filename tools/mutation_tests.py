"""Which tests run which lines, and running just those: what ``mutate.py`` asks of pytest and coverage."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant

OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "ignore"]


@dataclass(frozen=True)
class Baseline:
    """Tests with their seconds of processor time, and for each file the tests of each line."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Baseline:
        """Return what ``measure`` wrote, all of it together."""
        seconds, lines = {}, {}
        for path in paths:
            told = json.loads(path.read_text("utf-8"))
            tests = list(told["seconds"])
            seconds |= told["seconds"]
            for file, found in told["lines"].items():
                for line, some in found.items():
                    lines.setdefault(file, {}).setdefault(int(line), []).extend(tests[place] for place in some)
        return cls(seconds, lines)

    def choose(self, file: str, mutant: Mutant, budget: float) -> tuple[list[str], float]:
        """Return the tests that run a mistake, as many as fit in ``budget`` seconds, and how long they take.

        The fastest come first; one whose file has the name of the mistake's file in it counts as four times as fast.
        What runs when a function is made or a module is read belongs to no test: then all tests of the function, or of
        the file, count.
        """
        lines = self.lines.get(file, {})
        found = set()
        if mutant.scope is not None and not mutant.header:
            found = self._between(lines, mutant.first, mutant.last)
        if mutant.scope is not None and not found:
            found = self._between(lines, *mutant.scope)
        if not found:  # or at the level of the module, which whatever test comes first may have read
            found = self._between(lines, 1, 10**9)
        chosen, total = [], 0.0
        own = Path(file).stem

        def rank(test: str) -> tuple[float, str]:
            return self.seconds[test] / (4 if own in Path(test.split("::")[0]).stem else 1), test

        for test in sorted(found, key=rank):
            total += self.seconds[test]
            if chosen and total > budget:
                break
            chosen.append(test)
        return chosen, total

    @staticmethod
    def _between(lines: dict[int, list[str]], first: int, last: int) -> set[str]:
        return {test for line, tests in lines.items() if first <= line <= last for test in tests}


class _Watch:
    """Tells coverage which test is running, and keeps how much processor time each took, forked processes included."""

    def __init__(self, cover: object) -> None:
        self.cover, self.seconds = cover, {}

    def pytest_runtest_protocol(self, item: object) -> None:
        self.cover.switch_context(item.nodeid)
        self.seconds[item.nodeid] = -sum(os.times()[:4])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += sum(os.times()[:4])


class _Chosen:
    """Keeps the chosen tests only, in their order."""

    def __init__(self, chosen: Sequence[str]) -> None:
        self.rank = {name: place for place, name in enumerate(chosen)}

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda i: self.rank[i.nodeid])


def run_chosen(root: Path, chosen: Sequence[str]) -> int:
    """Run tests by name, in this order, until one fails; return pytest's exit status."""
    import pytest

    _quiet_laws()
    files = list(dict.fromkeys(name.split("::")[0] for name in chosen))
    return int(pytest.main([*OPTIONS, "--rootdir", str(root), *files], plugins=[_Chosen(chosen)]))


def measure(root: Path, source: str, places: Sequence[str], name: str, path: Path) -> int:
    """Run all tests in ``places`` and write which of them run which lines of ``source``; return pytest's status."""
    import coverage
    import pytest

    _quiet_laws()
    cover = coverage.Coverage(data_file=None, include=[f"{root / source}/*"], config_file=False)
    watch = _Watch(cover)
    cover.start()
    status = int(pytest.main([*OPTIONS, "--rootdir", str(root), *places], plugins=[watch]))
    cover.stop()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return status
    data, tests = cover.get_data(), {test: place for place, test in enumerate(watch.seconds)}
    lines = {
        Path(file).relative_to(root).as_posix(): {
            line: [tests[test] for test in by if test in tests] for line, by in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    own = ("headtools", "tests", "conftest", "coverage", "__")
    modules = [m for m in sys.modules if not m.startswith(own) and not m.split(".")[-1].startswith("test_")]
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"name": name, "seconds": watch.seconds, "lines": lines, "modules": modules}), "utf-8")
    os.replace(part, path)
    return 0


def _quiet_laws() -> None:
    """Let hypothesis draw the same examples each time and keep none."""
    from hypothesis import settings

    settings.register_profile("mutate", derandomize=True, database=None, deadline=None)
    settings.load_profile("mutate")
