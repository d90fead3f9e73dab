"""Put small mistakes into a room of headtools, one at a time, and count how many the room's own tests notice.

    tools/mutate.py heads importance --sample 300 --json build/mutate/result.json

A mistake (``mutants.py``) is tested in a process of its own, forked from one that has imported torch and transformers.
Its tests are the room's own (``tests/heads`` for heads) and its doctests; those of other rooms and of the whole
package, which run much of heads/ too, do not count. Of these only tests that run the changed lines are run, the fastest
first, until one fails. What was tested is kept in --state, so that a run that was stopped goes on; a changed file is
tested anew. Works where processes can be forked, so not on Windows.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path

from mutants import Mutant, mutants, mutated
from mutation_tests import Baseline, measure, run_chosen

ROOT = Path(__file__).resolve().parents[1]
NOTICED = ("failed", "stopped", "too long")


def main(words: Sequence[str] | None = None) -> int:
    """Test a sample of mistakes and say how many were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rooms", nargs="+", help="folders of headtools/, such as heads importance")
    parser.add_argument("--sample", type=int, default=150, help="mistakes of each room (0: all)")
    parser.add_argument("--seed", type=int, default=0, help="which mistakes are drawn")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for one mistake, fastest first")
    parser.add_argument("--state", type=Path, default=ROOT / "build/mutate", help="folder in which results are kept")
    parser.add_argument("--again", action="store_true", help="test once more those that were not noticed")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    args = parser.parse_args(words)
    os.chdir(ROOT)
    _refuse_another_copy()
    args.state = args.state.resolve()
    args.state.mkdir(parents=True, exist_ok=True)
    result = {room: _room(room, args) for room in args.rooms}
    for room, found in result.items():
        print(f"{room}: {found['noticed']} of {found['tested']} noticed, {found['score']:.1%}")
        for one in found["unnoticed"]:
            print(f"  {one['file']}:{one['line']} {one['kind']}: {one['before']}  ->  {one['after']}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def _refuse_another_copy() -> None:
    """Stop where tests would import headtools from another folder, in which there are no mistakes."""
    found = importlib.util.find_spec("headtools")
    place = Path(found.origin).resolve().parents[1] if found and found.origin else None
    if place != ROOT:
        raise SystemExit(f"headtools comes from {place}, and the mistakes go into {ROOT}: PYTHONPATH={ROOT} mends that")


def sample(files: Mapping[str, str], size: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return (file, mistake) drawn from all mistakes of these sources alike, in random order; 0 is all.

    A smaller sample of the same seed is the beginning of a larger one, so a run that was stopped is a sample too.

    >>> [mutant.kind for _, mutant in sample({"a.py": "x = 1 + 2", "b.py": "y = not x"}, 2, seed=0)]
    ['constant', 'arithmetic']
    """
    every = [(name, mutant) for name in sorted(files) for mutant in mutants(files[name])]
    random.Random(seed).shuffle(every)
    return every[: size or None]


def _room(room: str, args: argparse.Namespace) -> dict:
    files = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
             for path in sorted((ROOT / "headtools" / room).glob("*.py"))}  # fmt: skip
    if not files:
        raise SystemExit(f"headtools/{room} has no files: name a room, such as heads")
    tests = sorted((ROOT / "tests" / room).glob("test_*.py"))
    baseline = _baseline(room, files, tests, args.state)
    known = _known(args.state / f"{room}.jsonl")
    outcome = {}
    drawn = sample(files, args.sample, args.seed)
    for count, (file, mutant) in enumerate(drawn, 1):
        name = f"{file}:{mutant.number}:{sha256(files[file].encode()).hexdigest()[:12]}"
        if name not in known or (args.again and known[name] not in NOTICED):
            log = args.state / f"{room}-last.txt"
            known[name] = try_one(file, files[file], mutant, baseline, args.budget, log)
            with open(args.state / f"{room}.jsonl", "a", encoding="utf-8") as file_of_results:
                file_of_results.write(json.dumps([name, known[name]]) + "\n")
            print(f"{room} {count}/{len(drawn)} {file}:{mutant.first} {mutant.kind}: {known[name]}", flush=True)
        outcome[file, mutant.number] = known[name]
    return _summary(drawn, outcome, args.seed)


def try_one(file: str, source: str, mutant: Mutant, baseline: Baseline, budget: float, log: Path) -> str:
    """Return what the tests made of one mistake: 'failed', 'stopped', 'too long', 'passed' or 'not run'."""
    chosen, seconds = baseline.choose(file, mutant, budget)
    if not chosen:
        return "not run"
    tree = mutated(source, mutant.number)
    return in_child(lambda: _run(file, tree, chosen), 4 * seconds + 60, log)


def _run(file: str, tree: object, chosen: Sequence[str]) -> int:
    target = (ROOT / file).resolve()
    own = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> object:
        if Path(self.path).resolve() == target:
            return compile(tree, str(target), "exec", dont_inherit=True)
        return own(self, name)

    SourceFileLoader.get_code = get_code
    name = ".".join(Path(file).with_suffix("").parts)
    importlib.import_module(name.removesuffix(".__init__"))
    return run_chosen(ROOT, chosen)


def in_child(work: Callable[[], int], limit: float, log: Path) -> str:
    """Run ``work`` in a forked process, at most ``limit`` seconds, and return what became of it.

    'passed' for 0, 'failed' for any other number, 'stopped' for an exception or a crash, 'too long' for what had to be
    killed. What it prints goes to ``log``.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 5))
            paper = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(paper, stream)
            status = work()
        finally:
            os._exit(status)
    end, status = time.monotonic() + 3 * limit, None  # a busy machine may need longer than its processor time
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        status = None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # also whatever the tests started
    if status is None:
        os.waitpid(child, 0)
        return "too long"
    if os.WIFSIGNALED(status):
        return "too long" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "stopped"
    return {0: "passed", 99: "stopped"}.get(os.WEXITSTATUS(status), "failed")


def _baseline(room: str, files: Mapping[str, str], tests: Sequence[Path], state: Path) -> Baseline:
    """Return which test runs which lines; a test file is measured anew when it, a helper of it or the room changed."""
    helpers = sorted(set((ROOT / "tests" / room).glob("*.py")).difference(tests))
    parts = []
    for place in [*tests, ROOT / "headtools" / room]:
        path = state / f"{room}-lines-{place.stem}.json"
        own = _with_helpers(place.read_text("utf-8"), helpers) if place.is_file() else ""
        name = sha256("\0".join([*files.values(), own]).encode()).hexdigest()
        if not path.is_file() or json.loads(path.read_text("utf-8"))["name"] != name:
            print(f"{room}: running {place.relative_to(ROOT)} to see which lines it runs", flush=True)
            work = partial(measure, ROOT, f"headtools/{room}", [str(place.relative_to(ROOT))], name, path)
            done = in_child(work, 1800, log := path.with_suffix(".txt"))
            if done != "passed":
                raise SystemExit(f"the tests of {room} do not pass without a mistake ({done}), see {log}")
        parts.append(path)
        for module in json.loads(path.read_text("utf-8"))["modules"]:  # for all processes that come later
            try:
                importlib.import_module(module)
            except Exception:  # what a test made up, or what cannot be imported twice
                continue
    return Baseline.read(parts)


def _with_helpers(text: str, helpers: Sequence[Path]) -> str:
    """Return a test file's text with that of all helpers that it, or one of them, names."""
    left = list(helpers)
    while found := [helper for helper in left if helper.stem in text]:
        left = [helper for helper in left if helper not in found]
        text += "".join(helper.read_text("utf-8") for helper in found)
    return text


def _known(path: Path) -> dict[str, str]:
    return dict(json.loads(line) for line in path.read_text("utf-8").splitlines()) if path.is_file() else {}


def _summary(drawn: Sequence[tuple[str, Mutant]], outcome: Mapping[tuple, str], seed: int) -> dict:
    noticed = [key for key, found in outcome.items() if found in NOTICED]
    kinds = Counter(mutant.kind for _, mutant in drawn)
    caught = Counter(mutant.kind for file, mutant in drawn if outcome[file, mutant.number] in NOTICED)
    left = [
        {"file": file, "line": mutant.first, "kind": mutant.kind, "before": mutant.before, "after": mutant.after,
         "found": outcome[file, mutant.number]}
        for file, mutant in drawn if outcome[file, mutant.number] not in NOTICED
    ]  # fmt: skip
    shares = {kind: f"{caught[kind]} of {kinds[kind]}" for kind in sorted(kinds)}
    score = round(len(noticed) / max(1, len(drawn)), 4)
    return {"seed": seed, "tested": len(drawn), "noticed": len(noticed), "score": score, "kinds": shares,
            "unnoticed": left}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
