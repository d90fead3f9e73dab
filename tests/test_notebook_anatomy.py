"""Every lesson keeps to the anatomy; and every rule of the anatomy catches a lesson that does not."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import anatomy
import nbformat
import pytest
from lesson_parts import Notebook, lessons, prose
from measure_notebooks import fingerprint
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

LESSONS = lessons(Path(__file__).resolve().parents[1] / "notebooks")
APPENDICES = sorted((Path(__file__).resolve().parents[1] / "notebooks" / "more").glob("*.ipynb"))
PNG = "iVBORw0KGgo="
FIGURE = (
    f'<figure><img alt="A rising line." src="data:image/png;base64,{PNG}"><figcaption>It rises.</figcaption></figure>'
)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_keeps_to_the_anatomy(path: Path):
    assert anatomy.complaints(Notebook.read(path)) == []


def run_set_up(folder: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> tuple[str, str]:
    """Run the beginning of each lesson with or without the package; gives what pip was asked and what was printed."""
    (folder / "pip").write_text('#!/bin/sh\nprintf "%s|" "$@" >> "$(dirname "$0")/asked"\n')
    (folder / "pip").chmod(0o755)
    printed = []

    def system(command: str) -> None:
        env = {"PATH": f"{folder}:/usr/bin:/bin"}
        printed.append(subprocess.run(command, shell=True, env=env, capture_output=True, text=True, check=True).stdout)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if there else None)
    exec(anatomy.INSTALL, {"get_ipython": lambda: SimpleNamespace(system=system)})
    return (folder / "asked").read_text() if (folder / "asked").exists() else "", "".join(printed)


def test_where_the_package_is_missing_a_lesson_installs_it_and_says_so(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    asked, printed = run_set_up(tmp_path, monkeypatch, there=False)
    assert asked == f"install|-q|headtools[colab] @ git+{project['urls']['Repository']}|"
    assert printed == "Installing headtools ...\n"
    extra = project["optional-dependencies"]
    assert set(extra["colab"]) == {line for line in extra["course"] if not re.match("jupyterlab|ipykernel", line)}
    assert "torch>=2.6" in project["dependencies"]  # Colab's own torch is left as it is


def test_where_the_package_is_a_lesson_installs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run_set_up(tmp_path, monkeypatch, there=True) == ("", "")


# An appendix has no boxes, no minutes and no exercises of its own; what it shows was run, fits and can be read aloud.
OF_APPENDICES = (
    "valid_format",
    "was_run",
    "sizes",
    "pictures_speak",
    "captions_shown",
    "heading_levels",
    "code_fits",
    "voice",
)


@pytest.mark.parametrize("path", APPENDICES, ids=lambda path: path.stem)
def test_an_appendix_was_run_and_can_be_read(path: Path):
    notebook = Notebook.read(path)
    assert [complaint for name in OF_APPENDICES for complaint in anatomy.RULES[name](notebook)] == []


@pytest.fixture
def small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small lesson's catalogue has one entry."""
    monkeypatch.setattr(anatomy, "catalogue_of", lambda notebook: {"count": {"caption": "{n} lines."}})


def test_there_are_lessons():
    assert len(LESSONS) >= 2
    assert [path.name[:2] for path in LESSONS] == [f"{n:02d}" for n in range(len(LESSONS))]


def test_the_first_lesson_lists_all_others_by_their_titles():
    prose_text = prose(Notebook.read(LESSONS[0]).markdown)
    raw = Notebook.read(LESSONS[0]).markdown
    for path in LESSONS[1:]:
        title = Notebook.read(path).nb.cells[0].source.splitlines()[0].split(" · ", 1)[1]
        assert f"| {path.name[:2]} | [{title}]({path.name}) |" in raw, title
    assert "planned" not in prose_text


def shown(html: str, plain: str = "The line rises by 1."):
    return new_output("display_data", {"text/html": html, "text/plain": plain})


def sound(folder: Path) -> Notebook:
    """A small lesson that keeps every rule."""
    cells = [
        new_markdown_cell("# What does a head do?"),
        new_markdown_cell(
            "> **You will be able to** count.\n>\n> **You need** nothing.\n>\n> **Difficulty** 1 of 3: none.\n>\n"
            "> 1 minute, 450 MB. Allow yourself about 10 minutes for reading, predictions and exercises."
        ),
        new_code_cell(f"{anatomy.INSTALL}import torch\nfrom headtools import check"),
        new_markdown_cell("## First\n\n" + "Look at this word. " * 260 + "[there](#references) and [data](data.json)"),
        new_code_cell('torch.manual_seed(0)\nx = torch.randn(3)\nmeasured("00.count", n=1)', outputs=[shown(FIGURE)]),
    ]
    for n in (1, 2):
        cells += [
            new_markdown_cell(
                f"### Exercise {n}: count\n\n*Tries to teach counting. Difficulty 1 of 3, about 2 minutes.*"
            ),
            new_code_cell(f"answer{n} = ..."),
            new_code_cell(f'check("count", answer{n})'),
            new_markdown_cell(f"<details><summary>Solution</summary>\n\n```python\nanswer{n} = 3\n```\n\n</details>"),
        ]
    cells += [new_markdown_cell(f"And so on, {n}.") for n in range(12)]
    cells += [
        new_markdown_cell("## What we did not show\n\nMuch."),
        new_markdown_cell("## References\n\n1. A paper."),
        new_markdown_cell("[Next](01_next.ipynb)"),
    ]
    for n, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = n
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nb = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    path = folder / "00_start.ipynb"
    (folder / "01_next.ipynb").write_text("{}")
    (folder / "data.json").write_text("{}")
    nbformat.write(nb, path)
    return Notebook(path, nb, {"seconds": 20.0, "megabytes": 420, "code": fingerprint(nb)})


@pytest.mark.usefixtures("small_catalogue")
def test_a_sound_lesson_has_no_complaints(tmp_path: Path):
    assert anatomy.complaints(sound(tmp_path)) == []


def code(nb: nbformat.NotebookNode, n: int):
    return [cell for cell in nb.cells if cell.cell_type == "code"][n]


def edit(n: int, old: str, new: str) -> Callable:
    """Replace text in cell n."""

    def change(nb: nbformat.NotebookNode) -> None:
        assert old in nb.cells[n].source
        nb.cells[n].source = nb.cells[n].source.replace(old, new)

    return change


def output(*outputs) -> Callable:
    return lambda nb: code(nb, 1).update(outputs=list(outputs))


def source(text: str, n: int = 1) -> Callable:
    return lambda nb: code(nb, n).update(source=text)


def stream(text: str, name: str = "stdout"):
    return new_output("stream", name=name, text=text)


BIG = shown(FIGURE + "<p>" + "x" * 160_000 + "</p>")
FRAMED = '<iframe title="heads" srcdoc="{}"></iframe>'

# (rule, how to break it, what the complaint says)
BROKEN = [
    ("valid_format", lambda nb: nb.metadata["kernelspec"].update(name="my-env"), "python3"),
    ("valid_format", lambda nb: nb.metadata.update(widgets={}), "metadata.widgets"),
    ("valid_format", lambda nb: nb.cells[0].update(cell_type="poem"), "not a valid notebook"),
    ("title_asks", edit(0, "?", "."), "must be a question"),
    ("title_asks", edit(0, "# ", ""), "must start with the title"),
    ("title_asks", edit(3, "## First", "# First"), "one title"),
    ("box_tells", edit(1, "You will be able to", "Learn to"), "You will be able to"),
    ("box_tells", edit(1, "You need", "Bring"), "You need"),
    ("box_tells", edit(1, "1 of 3", "4 of 3"), "the box lacks '**Difficulty** N of 3"),
    ("box_tells", edit(1, "for reading", "for skimming"), "minutes for reading"),
    ("box_tells", edit(1, "450 MB", "500 MB"), "measured.json '1 minute, 450 MB'"),
    ("box_tells", edit(1, "1 minute", "2 minutes"), "measured.json '1 minute, 450 MB'"),
    ("box_tells", edit(1, "1 minute, ", ""), "lacks 'N minutes, M MB'"),
    ("box_tells", source("torch.manual_seed(1)"), "changed since it was measured"),
    ("setup_imports_only", source(f"{anatomy.INSTALL}import torch\nx = 1", 0), "more than imports: 'x = 1'"),
    ("setup_imports_only", source("# nothing yet", 0), "must be imports"),
    ("setup_imports_only", source("import torch", 0), "begin as in all lessons"),
    ("was_run", lambda nb: code(nb, 2).update(execution_count=None), "not run in order"),
    ("was_run", lambda nb: code(nb, 2).update(execution_count=9), "not run in order"),
    ("was_run", source(" \n", 1), "empty cell"),
    ("was_run", output(new_output("error", ename="KeyError", evalue="", traceback=[])), "KeyError"),
    ("was_run", output(stream("a warning", "stderr")), "stderr"),
    ("sizes", output(BIG), "an output of 160 kB"),
    ("sizes", output(shown(FRAMED.format("y" * 310_000))), "an output of 310 kB"),
    ("sizes", output(*[shown(FIGURE + "z" * 140_000)] * 5), "the file has"),
    ("captions_shown", output(), "'count' is not shown"),
    ("captions_shown", output(stream("3 lines.")), "'count' is not shown"),
    ("pictures_speak", output(shown(FIGURE.replace("A rising line.", ""))), "without alt"),
    ("pictures_speak", output(shown(FIGURE.replace('alt="A rising line." ', ""))), "without alt"),
    ("pictures_speak", output(shown(FRAMED.format("<img src='data:,'>"))), "without alt"),
    ("pictures_speak", edit(3, "[data]", "![]"), "without alt"),
    ("pictures_speak", output(shown(FIGURE, "<Figure size 640x480 with 1 Axes>")), "without a claim"),
    ("pictures_speak", output(new_output("display_data", {"image/png": PNG, "text/plain": ""})), "without a claim"),
    ("pictures_speak", output(shown(FIGURE.replace("It rises.", " "))), "without a caption"),
    ("heading_levels", edit(3, "## First", "#### First"), "jumps from level 1 to 4"),
    ("sections", edit(-3, "What we did not show", "The rest"), "What we did not show"),
    ("sections", edit(-2, "References", "Papers"), "References"),
    ("links_resolve", edit(3, "data.json", "lost.json"), "lost.json"),
    ("links_resolve", edit(3, "#references", "#nowhere"), "no heading"),
    ("links_resolve", edit(-1, "[Next](01_next.ipynb)", "The end."), "no link to 01_next.ipynb"),
    ("outputs_stay_here", output(shown('<script src="https://cdn.example/d3.js"></script>')), "https://cdn.example"),
    ("outputs_stay_here", output(shown("<script>require(['https://cdn.example/d3'])</script>")), "https://cdn.example"),
    ("outputs_stay_here", output(shown('<img alt="a" src="//example.org/a.png">')), "//example.org"),
    (
        "outputs_stay_here",
        output(shown('<link rel="stylesheet" href="http://example.org/a.css">')),
        "http://example.org",
    ),
    ("outputs_stay_here", output(shown(FRAMED.format("<script src='https://x.org/a.js'></script>"))), "https://x.org"),
    ("outputs_stay_here", output(new_output("display_data", {"application/javascript": "1"})), "a script"),
    ("outputs_stay_here", output(stream("saved to /home/ann/model")), "/home/a"),
    ("outputs_stay_here", output(stream("C:\\Users\\ann")), "C:"),
    ("outputs_stay_here", output(stream("listening on localhost:8888")), "localhost:8888"),
    ("code_stays_clean", source("%pip install headtools"), "magic or shell"),
    ("code_stays_clean", source("x = 1\n  !pip install headtools"), "magic or shell"),
    ("code_stays_clean", source("x = (1"), "not Python"),
    ("code_stays_clean", source("model(**batch, head_mask=mask)"), "without the tag 'trap'"),
    ("code_stays_clean", source('model(**{"head_mask": mask})'), "without the tag 'trap'"),
    ("code_stays_clean", source("x = torch.randn(3)"), "before a seed"),
    ("exercises", lambda nb: nb.cells.__delitem__(slice(5, 13)), "no exercise"),
    ("exercises", edit(7, "check(", "print("), "has no check"),
    ("exercises", lambda nb: nb.cells.__delitem__(8), "has no solution"),
    ("exercises", lambda nb: nb.cells.__delitem__(6), "has no stub"),
    ("exercises", lambda nb: nb.cells.insert(6, nb.cells.pop(8)), "first the stub"),
    ("exercises", edit(5, "about 2 minutes", "short"), "about N minutes"),
    ("exercises", edit(5, "Difficulty 1 of 3", "Hard"), "Difficulty N of 3"),
    ("numbers_are_measured", source("x = 1"), "the entry 'count' is not used"),
    ("numbers_are_measured", source('measured("00.line", n=1)'), "there is no entry 'line'"),
    ("numbers_are_measured", edit(3, "Look at", "In 0.94 of cases look at"), "'0.94' stands in prose"),
    ("numbers_are_measured", edit(3, "Look at", "In 94 % of cases look at"), "'94%' stands in prose"),
    ("code_fits", source("x = " + "1 + " * 30 + "1"), "125 columns of code"),
    ("voice", edit(3, "Look", "Simply look"), "simply"),
    ("voice", edit(3, "Look at this word. ", "As you can see, it works. "), "as you can see"),
]


@pytest.mark.usefixtures("small_catalogue")
@pytest.mark.parametrize(("rule", "break_it", "says"), BROKEN, ids=[f"{n}-{b[0]}" for n, b in enumerate(BROKEN)])
def test_a_broken_lesson_is_told(tmp_path: Path, rule: str, break_it: Callable, says: str):
    notebook = sound(tmp_path)
    break_it(notebook.nb)
    notebook.path.write_text(json.dumps(notebook.nb))
    broken = Notebook(notebook.path, notebook.nb, notebook.measured)
    assert any(says in complaint for complaint in anatomy.RULES[rule](broken)), anatomy.RULES[rule](broken)


def test_every_rule_is_shown_to_fail():
    assert {rule for rule, _, _ in BROKEN} == set(anatomy.RULES)


def test_a_trap_may_be_shown_and_an_unmeasured_lesson_is_told(tmp_path: Path):
    notebook = sound(tmp_path)
    code(notebook.nb, 1).update(source="model(**batch, head_mask=mask)", metadata={"tags": ["trap"]})
    unmeasured = Notebook(notebook.path, notebook.nb)
    assert anatomy.RULES["code_stays_clean"](unmeasured) == []
    assert anatomy.RULES["box_tells"](unmeasured) == ["nothing is measured: run `make measure`"]


def test_prose_counts_what_is_read():
    text = "One *two* [three](http://x.org/a) `four` <b>five</b> $x y z$ - six"
    text += "\n\n```python\nno\n```\n<details>no</details>"
    assert prose(text).split() == ["One", "*two*", "three", "`four`", "five", "six"]
