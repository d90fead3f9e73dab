"""Who passes the parameters of the public functions: lessons, problem sets, recipes, tools, the package, pages, tests.

    python tools/count_parameters.py            # a line for each parameter that nobody but a test passes
    python tools/count_parameters.py --all      # a line for each public name

A call counts by the function's name and the names or places of its arguments; ``**options`` are not seen.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import headtools as ht

ROOT = Path(__file__).resolve().parents[1]


def code_of(path: Path) -> Iterator[str]:
    """Yield the Python in a module, a notebook's cells (solutions in Markdown too) or a page."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        yield text
        for block in re.findall(r"(?:^ *(?:>>>|\.\.\.) .*\n)+", text, re.M):  # doctests show users what to pass
            yield "\n".join(line.strip()[4:] for line in block.splitlines())
        return
    if path.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            source = "".join(cell["source"])
            yield from [source] if cell["cell_type"] == "code" else re.findall(r"```python\n(.*?)```", source, re.S)
        return
    yield from re.findall(r"```python\n(.*?)```", text, re.S)


def calls(code: str) -> Iterator[tuple[str, int, set[str]]]:
    """Yield the name, the number of positional arguments and the keywords of each call."""
    try:
        tree = ast.parse(re.sub(r"^\s*[%!].*$", "", code, flags=re.M))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            yield name, len(node.args), {keyword.arg for keyword in node.keywords if keyword.arg}


def parameters() -> dict[str, list[str]]:
    """Return the parameters of every public function and class."""
    found = {}
    for name in ht.__all__:
        try:
            signature = inspect.signature(getattr(ht, name))
        except (TypeError, ValueError):
            continue
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        found[name] = [p.name for p in signature.parameters.values() if p.kind not in kinds]
    return found


def passed() -> dict[tuple[str, str], set[str]]:
    """Return who passes each parameter: {(function, parameter): {"lessons", "recipes", ...}}."""
    places = {
        "lessons": ROOT.glob("notebooks/**/*.ipynb"),
        "problem sets": ROOT.glob("assignments/source/*/*.ipynb"),
        "pages": [*ROOT.glob("*.md"), *ROOT.glob("notebooks/*.md")],
        "recipes": ROOT.glob("recipes/**/*.py"),
        "tools": ROOT.glob("tools/**/*.py"),
        "package": ROOT.glob("headtools/**/*.py"),
        "tests": ROOT.glob("tests/**/*.py"),
    }
    public, found = parameters(), defaultdict(set)
    classes = [name for name in public if inspect.isclass(getattr(ht, name))]
    for place, paths in places.items():
        for path in paths:
            for code in code_of(path):
                for called, positional, keywords in calls(code):
                    # dataclasses.replace(it, field=...) makes whichever class has this field
                    changes = place == "package" and called == "replace" and positional == 1
                    for name in classes if changes else [called]:
                        given = [] if changes else public.get(name, [])[:positional]
                        for parameter in [*given, *keywords]:
                            found[name, parameter].add(place)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="each public name, with who passes what")
    everything, found, alone = parser.parse_args().all, passed(), 0
    for name, own in parameters().items():
        by = {parameter: found[name, parameter] for parameter in own}
        lonely = [parameter for parameter, who in by.items() if who <= {"tests"}]
        alone += len(lonely)
        if everything:
            print(name, "; ".join(f"{p}: {', '.join(sorted(who)) or 'nobody'}" for p, who in by.items()))
        elif lonely:
            print(name, ", ".join(lonely))
    total = sum(map(len, parameters().values()))
    print(f"{len(ht.__all__)} public names, {total} parameters, {alone} passed by tests alone or by nobody")


if __name__ == "__main__":
    main()
