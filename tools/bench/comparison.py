"""headtools against its peers, each in an environment of its own: ``make bench ARGS=--peers``.

    python tools/bench/comparison.py [--rounds 3] [--json FILE] [--quick] [--peer NAME ...] [--kind bert ...]

Two processes build the same random model, one in the test environment with headtools, one in the peer's
(``.venv-peers``, made by ``tools/peers.sh``). They take turns: this process asks the one for a piece of work, waits,
asks the other, on one thread each, and never both at once. Every round runs the plain pass of both sides as well, so a
row says three things: what the work costs each side in plain passes of its own environment, the quotient of both CPU
times, and by how much the numbers differ, as a share of the greatest. Plain passes must give the same logits, or
nothing is compared. What a peer cannot do is told by its own error. The counted operations are those of ``counts.py``.

Exact leave-one-out is run less often and on two rows of the batch. Of a loop one head in every layer is run, and the
time taken as many times: the loop costs the same for each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import counts
import subjects
import timing

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".venv-peers"
PEERS = {"transformers4": "transformers", "transformer_lens": "transformer-lens", "captum": "captum", "lxt": "lxt"}
SAME = 1e-4  # of the greatest logit: eager and fused attention differ by rounding
WHY = {
    "gradient": "forward, and the activations' half of backward",
    "leave-one-out": "what lies above each head",
    "relevance": "forward, and back to the embeddings, activations only",
    "maps": "references to what eager attention computes",
    "previous token": "a sum over maps that eager attention computes",
    "pruned": "operations left",
}


class Side:
    """A process that runs works on demand in some environment."""

    def __init__(self, python: Path | str, module: str, kind: str, size: str) -> None:
        command = [str(python), str(HERE / "peers" / "worker.py"), module, kind, size]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        self.told = self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"the process ended with {self.process.wait()}"}

    def run(self, work: str) -> dict:
        """CPU seconds and numbers of one work, or its error."""
        try:
            self.process.stdin.write(work + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the process ended with {self.process.wait()}"}
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def counted(work: str, kind: str, size: subjects.Size) -> float:
    """The operations of a work, in plain passes."""
    ways: dict[str, Callable[[], float]] = {
        "gradient": lambda: counts.gradient(kind, size),
        "leave-one-out": lambda: counts.ablation(kind, size),
        "relevance": lambda: counts.relevance(kind, size),
        "maps": lambda: 1.0,
        "previous token": lambda: 1.0,
        "pruned": lambda: counts.pruned(kind, size, 0.5),
    }
    return ways[work]()


def difference(ours: dict[str, float], theirs: dict[str, float]) -> float | None:
    """The greatest difference of numbers that both sides have, as a share of the greatest of all; None without any.

    >>> difference({"a": 2.0, "b": 1.0}, {"a": 2.0, "b": 1.5, "c": 9.0})
    0.25
    """
    shared = ours.keys() & theirs.keys()
    most = max((abs(x) for x in ours.values()), default=0.0)
    return max(abs(ours[name] - theirs[name]) for name in shared) / most if shared and most else None


def measure(peer: str, kind: str, size: str, rounds: int, pythons: dict[str, Path | str]) -> list[dict]:
    """Rows of everything that a peer does with one kind of model; one row that says why where it does nothing."""
    shape = subjects.size_of(kind, size)
    layers = f"{shape.layers} + {shape.layers}" if kind == "marian" else shape.layers
    about = {"peer": peer, "kind": kind, "model": f"{subjects.NAMES[kind]}, {layers} layers"}
    if peer not in pythons:
        return [{**about, "work": "all", "said": "not installed"}]
    with (
        Side(sys.executable, "with_headtools", kind, size) as ours,
        Side(pythons[peer], f"with_{peer}", kind, size) as it,
    ):
        if "error" in ours.told:
            raise RuntimeError(f"headtools' own side failed: {ours.told['error']}")
        if "error" in it.told:
            return [{**about, "work": "all", "said": it.told["error"]}]
        about["version"] = it.told["versions"][PEERS[peer]]
        about["environment"] = it.told["versions"]
        first = ours.run("plain"), it.run("plain")
        if any("error" in answer for answer in first):
            return [{**about, "work": "all", "said": f"no plain pass: {first[1].get('error', first[0])}"}]
        apart = difference(*(answer["numbers"] for answer in first))
        if apart is None or apart > SAME:
            raise RuntimeError(f"{peer}, {kind}: the plain passes differ by {apart}, so nothing can be compared")
        works = [work for work in it.told["works"] if not work.startswith("plain")]
        return [row(ours, it, work, about, counted(work.split(",")[0], kind, shape), rounds) for work in works]


def row(ours: Side, it: Side, work: str, about: dict, count: float, rounds: int) -> dict:
    """One row: a work on both sides and both plain passes, taking turns."""
    name = work.split(",")[0]  # "gradient, weights frozen" is held against our gradient
    exact = name == "leave-one-out"
    unit = "plain, 2 rows" if exact else "plain"
    steps = [(ours, unit), (ours, name), (it, work), (it, unit)]
    taken: dict[int, list[float]] = {n: [] for n in range(4)}
    told = {**about, "work": work, "counted": count, "why": WHY[name]}
    numbers = [{}, {}]
    for repeat in range(-(-rounds // 3) if exact else rounds + 1):
        for n in range(4) if repeat % 2 == 0 else range(3, -1, -1):
            answer = steps[n][0].run(steps[n][1])
            if "error" in answer:
                if n == 1:
                    raise RuntimeError(f"headtools' own side failed: {answer['error']}")
                return {**told, "said": answer["error"]}
            if n in (1, 2):
                numbers[n - 1] = answer["numbers"]
            if repeat or exact:  # the first round warms up
                taken[n].append(answer["seconds"])
    return {
        **told,
        **{f"ours_{k}": v for k, v in timing.ratio(taken[1], taken[0]).items()},
        **{f"peer_{k}": v for k, v in timing.ratio(taken[2], taken[3]).items()},
        **timing.ratio(taken[2], taken[1]),
        "ours_s": statistics.median(taken[1]),
        "peer_s": statistics.median(taken[2]),
        "rounds": len(taken[0]),
        "difference": difference(*numbers),
    }


def markdown(rows: Sequence[dict]) -> str:
    """The rows as a table: each side in plain passes and CPU seconds, their quotient, difference of the numbers."""
    lines = [
        "| work | model | peer | counted | headtools, passes | CPU s | peer, passes | CPU s | quotient | differ |",
        "|" + "---|" * 10,
    ]
    for r in rows:
        who = f"{r['peer']} {r.get('version', '')}".strip()
        if "said" in r:
            lines.append(f"| {r['work']} | {r['model']} | {who} | | | | cannot: {r['said']} | | | |")
            continue
        each = [{k: r[f"{side}_{k}"] for k in ("ratio", "low", "high")} for side in ("ours", "peer")]
        sides = [timing.spread({**side, "rounds": r["rounds"]}) for side in each]
        differ = "" if r["difference"] is None else f"{r['difference']:.0e}"
        times = [f"{r['ours_s']:.2f}", f"{r['peer_s']:.2f}"]
        cells = (
            r["work"],
            r["model"],
            who,
            f"{r['counted']:.2f}: {r['why']}",
            sides[0],
            times[0],
            sides[1],
            times[1],
            timing.spread(r),
            differ,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def environments() -> dict[str, Path]:
    """The peers that are installed, with the Python of each."""
    found = {name: ENVIRONMENTS / name / "bin" / "python" for name in PEERS}
    return {name: python for name, python in found.items() if list(python.parents[1].glob("installed-*"))}


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=3, peer=list(PEERS), kind=list(subjects.MAKERS))
    rows = []
    for peer in given.peer:
        for kind in given.kind:
            found = measure(peer, kind, "tiny" if given.quick else "full", given.rounds, environments())
            print(markdown(found), flush=True)
            rows += found
    if given.json:
        given.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
