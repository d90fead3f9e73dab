"""The pages of the API: an overview by task, and for each room its public names, an example before each signature."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass
from pathlib import Path

import headtools

TASKS = Path(__file__).resolve().parents[1] / "site" / "course" / "tasks.toml"
ROOMS = {
    "heads": "See, switch and cut heads",
    "roles": "What heads attend to, and carry",
    "geometry": "What weights can read and write",
    "importance": "How much a head matters",
    "sparse": "How many heads can go",
    "organism": "The shipped model",
    "course": "What the notebooks show and ask",
    "running": "Reports and long runs",
}
RUNNING = ("_engine", "_report")  # private rooms with public names: they stand under "running"
OPENING = """# What do you want to do?

Every public name with a line that uses it, by task. In the examples `model` and `tokenizer` are what `ht.load()` gives,
`sentences` and `validation` are sentences of two splits of `ht.corpus("organism")`, `batches` is what `ht.label` makes
of them, `llm` is a causal language model with a batch of `tokens`, `folder` is a `Path`, and `seen` is what `ht.record`
recorded in another run.

```python
import headtools as ht
from headtools import geometry
```
"""


@dataclass(frozen=True)
class Call:
    """A public name, what it is for, a line that uses it, and the room it is in."""

    name: str
    about: str
    example: str
    room: str


def tasks(path: Path = TASKS) -> dict[str, list[Call]]:
    """Return the calls of each task, in the order of the overview."""
    tasks = tomllib.loads(path.read_text("utf-8"))["task"]
    return {task["title"]: [Call(*call, task.get("room") or room(call[0])) for call in task["calls"]] for task in tasks}


def room(name: str) -> str:
    """Return the room of a public name of the package.

    >>> room("ablate"), room("report")
    ('heads', 'running')
    """
    first = headtools._WHERE[name].split(".")[0]
    return "running" if first in RUNNING else first


def home(call: Call) -> object:
    """Return what a call names."""
    where = headtools.geometry if call.room == "geometry" else headtools
    return getattr(where, call.name)


def pages() -> dict[str, str]:
    """Return the Markdown of all pages by their names."""
    return {"index.md": overview()} | {f"{name}.md": page(name) for name in ROOMS}


def overview() -> str:
    """Return the overview: a table for each task."""
    lines = [OPENING]
    for title, calls in tasks().items():
        lines += [f"## {title}", "", '<div class="tasks">', ""]
        for call in calls:
            lines += [f"[`{call.name}`]({call.room}.md#{call.name.lower()}) {call.about}.", "", *_code(call), ""]
        lines += ["</div>", ""]
    return "\n".join(lines)


def page(name: str) -> str:
    """Return the page of a room: what it is for, then each name with its example and its docstring."""
    lines = [f"# {ROOMS[name]}", ""]
    if name != "running":
        lines += [f"```{{eval-rst}}\n.. automodule:: headtools.{name}\n```"]
    for call in sorted((call for calls in tasks().values() for call in calls if call.room == name), key=_place):
        thing = home(call)
        kind = "autoclass" if isclass(thing) else "autofunction"
        more = "\n   :members:" if kind == "autoclass" else ""
        documented = f"```{{eval-rst}}\n.. {kind}:: {thing.__module__}.{thing.__name__}{more}\n```"
        lines += ["", f"## {call.name}", "", f"{call.about}.", "", *_code(call), "", documented]
    return "\n".join(lines) + "\n"


def laid_out(example: str) -> str:
    """Return an example with a line for each statement.

    >>> print(laid_out('with ht.ablate(model, heads): loss = f(x); g(loss)'))
    with ht.ablate(model, heads):
        loss = f(x)
        g(loss)
    """
    lines, starts = [], []
    for statement in ast.parse(example).body:
        starts += [(statement.col_offset, 0)]
        starts += [(inner.col_offset, 4) for inner in getattr(statement, "body", [])]
    for (start, indent), (end, _) in zip(starts, [*starts[1:], (len(example), 0)], strict=True):
        lines.append(" " * indent + example[start:end].strip().removesuffix(";"))
    return "\n".join(lines)


def _code(call: Call) -> list[str]:
    return ["```python", laid_out(call.example), "```"]


def _place(call: Call) -> int:
    """Return where a name stands in the package's own list."""
    names = list(headtools._WHERE)
    if call.room == "geometry":
        names = list(import_module("headtools.geometry").__all__)
    return names.index(call.name)
