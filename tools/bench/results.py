"""The benchmark's last results: one file of JSON, one of Markdown, and the short table on the page of benchmarks.

``results.json`` has a section for each script, with its date, versions and rows; ``results.md`` all rows; the page,
between two markers, what a reader asks first: what each work costs in plain forward passes, by headtools and by others.
A section that is run again replaces its last one and leaves the others.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import comparison
import timing

HERE = Path(__file__).resolve().parent
JSON, MARKDOWN, PAGE = HERE / "results.json", HERE / "results.md", HERE.parents[1] / "notebooks" / "benchmarks.md"
BEGIN, END = "<!-- bench: written by make bench -->\n", "<!-- /bench -->"
LIMIT = 20  # rows that the page can bear
WORKS = {
    "gradient": "gradient importance",
    "gradient, weights frozen": "gradient importance",
    "leave-one-out": "exact leave-one-out",
    "relevance": "AttnLRP",
    "maps": "maps of all heads",
    "previous token": "weight on the token before",
    "pruned": "pass without half of the heads",
}
NAMES = {"transformers4": "transformers", "transformer_lens": "TransformerLens", "captum": "captum", "lxt": "lxt"}
BY = {"maps": "output_attentions", "pruned": "prune_heads"}  # of transformers 4; the rest is head_mask
KINDS = {"bert": "BERT-base", "gpt2": "GPT-2 small", "marian": "Marian base"}


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        import platform

        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def read(path: Path = JSON) -> dict:
    """The last results; none yet where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sections": {}}


def markdown(results: Mapping) -> str:
    """All rows, section by section."""
    parts = [
        "# What headtools costs\n",
        "Written by `make bench` (`ARGS=--peers` for the comparison). CPU time of one thread, medians of repetitions",
        "that take turns, quartiles in brackets; every count of operations is argued in `counts.py`, every row in the",
        "script that its section is named after. Weights are random.\n",
    ]
    for name, section in results["sections"].items():
        versions = ", ".join(f"{package} {version}" for package, version in section["versions"].items())
        table = comparison.markdown if name == "comparison" else timing.markdown
        parts += [f"## {name}\n", f"{section['date']}, {section['cpu']}, {versions}\n", table(section["rows"]) + "\n"]
    return "\n".join(parts)


def cell(values: Iterable[Mapping], side: str = "") -> str:
    """Median ratio and half of the distance of the quartiles; without where there was one round.

    >>> cell([{"ratio": 2.03, "low": 2.0, "high": 2.06}]), cell([])
    ('2.03 ± 0.03', '')
    """
    rows = list(values)
    if not rows:
        return ""
    if all("said" in row for row in rows):
        return "not installed" if rows[0]["said"] == "not installed" else "refuses"
    rows = [row for row in rows if "said" not in row]
    middle = statistics.median(row[f"{side}ratio"] for row in rows)
    half = statistics.median((row[f"{side}high"] - row[f"{side}low"]) / 2 for row in rows)
    digits = 1 if middle >= 10 else 2
    spread = "" if all(row.get("rounds") == 1 for row in rows) else f" ± {half:.{digits}f}"
    return f"{middle:.{digits}f}{spread}"


def called(peer: str, work: str, rows: Iterable[Mapping]) -> str:
    """A peer with its version, and what of it does the work.

    >>> called("transformers4", "pruned", [{"version": "4.57.6"}])
    'transformers 4.57.6, `prune_heads`'
    """
    name = f"{NAMES[peer]} {next((row['version'] for row in rows if 'version' in row), '')}".strip()
    name += f", `{BY.get(work, 'head_mask')}`" if peer == "transformers4" else ""
    return name + (", weights frozen by hand" if "frozen" in work else "")


def short(results: Mapping) -> str:
    """The table of the page: a row for each work and who does it, a column for each model, in plain forward passes."""
    section = results["sections"]["comparison"]
    rows = section["rows"]
    versions = section["versions"]
    torch, transformers = versions["torch"].split("+")[0], versions["transformers"]
    lines = [
        f"Measured {section['date']} on one thread of an {section['cpu']}, torch {torch},",
        f"transformers {transformers}, random weights, 4 x 64 tokens (leave-one-out 2 x 64). In plain forward",
        "passes of the same environment, by CPU time: median ± half of the distance between the quartiles, alone where",
        "there was one round; *counted* are the operations that the three models need.\n",
        "| work | counted | by | " + " | ".join(KINDS.values()) + " |",
        "|" + "---|" * (3 + len(KINDS)),
    ]
    for work, told_as in WORKS.items():
        some = [row for row in rows if row["work"] == work]
        if not some:
            continue
        counts = [next((r["counted"] for r in some if r["kind"] == kind and "counted" in r), None) for kind in KINDS]
        count = ", ".join("–" if c is None else f"{c:.{1 if c >= 10 else 2}f}" for c in counts)
        every = [("**headtools**", [row for row in some if "said" not in row], "ours_")] if "," not in work else []
        for peer in dict.fromkeys(row["peer"] for row in some):
            its = [row for row in some if row["peer"] == peer]
            nothing = [row for row in rows if row["peer"] == peer and row["work"] == "all"]  # of a kind of model
            every.append((called(peer, work, its), its + nothing, "peer_"))
        for name, its, side in every:
            cells = [cell([row for row in its if row["kind"] == kind], side) for kind in KINDS]
            lines.append(f"| {told_as} | {count} | {name} | " + " | ".join(cells) + " |")
    gone = sorted({row["peer"] for row in rows if row.get("said") == "not installed"})
    if gone:
        lines.append(f"\nNot installed here, so not measured: {', '.join(gone)}.")
    return "\n".join(lines) + "\n"


def place(page: str, table: str) -> str:
    """The page with this table between its markers.

    >>> place(f"a\\n{BEGIN}old\\n{END}\\nb", "new\\n") == f"a\\n{BEGIN}new\\n{END}\\nb"
    True
    """
    before, rest = page.split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


def save(results: Mapping) -> None:
    """Write the JSON, the Markdown and the page's table."""
    write(JSON, json.dumps(results, indent=1) + "\n")
    write(MARKDOWN, markdown(results))
    if "comparison" in results["sections"]:
        write(PAGE, place(PAGE.read_text(encoding="utf-8"), short(results)))
