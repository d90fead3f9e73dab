"""Problem sets keep the house rules, and every page about them says what they hold."""

import json
import math
import re
import subprocess
from pathlib import Path

import anatomy
import nbformat
import pytest
from lesson_parts import FENCE, Notebook, headings, lessons, links, slug
from measure_notebooks import BOX, fingerprint, problem_sets, words
from wrong import WRONG

ROOT = Path(__file__).resolve().parents[2]
SETS = problem_sets()
TOTAL = {path.stem: 30 if path.stem == "ps5_project" else 24 for path in SETS}  # points
RULES = ("valid_format", "title_asks", "heading_levels", "pictures_speak", "links_resolve", "code_stays_clean", "voice")
PAGES = (
    "notebooks/teaching.md",
    "assignments/README.md",
    "assignments/instructor/marking.md",
    "assignments/instructor/exam.md",
)
# Words of the first edition in place of the field's terms, which are in the glossary.
OLD_WORDS = ("lumps?", "looks", "end marks?", "putting back", "right angles", "dearest", "told", "price", "loudest")
LINES = 40  # of a cell that a learner reads
HIDDEN_LINES = 75  # of a cell with hidden tests or with a solution; three tests of the library bring their own model


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def measured() -> dict[str, dict]:
    return json.loads(read("assignments/measured.json"))["lessons"]


def graded(nb: nbformat.NotebookNode) -> dict[str, int]:
    """{id of a test cell or a written answer: its points}."""
    cells = [cell.metadata.get("nbgrader", {}) for cell in nb.cells]
    return {one["grade_id"]: one["points"] for one in cells if one.get("grade")}


def by_task(nb: nbformat.NotebookNode) -> dict[str, int]:
    """{number of a task: its points}."""
    sums: dict[str, int] = {}
    for name, points in graded(nb).items():
        task = re.fullmatch(r"ps\d-(\d)[a-d]?", name)[1]
        sums[task] = sums.get(task, 0) + points
    return sums


def rows(text: str) -> list[list[str]]:
    """The rows of all tables in a Markdown text, without their first lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "|---" not in line]


# --- the notebooks ----------------------------------------------------------------------------------------------------


def test_there_are_five():
    assert [path.stem for path in SETS] == list(WRONG)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_it_keeps_the_house_rules(path: Path):
    notebook = Notebook.read(path)
    assert [f"{name}: {found}" for name in RULES for found in anatomy.RULES[name](notebook)] == []
    source = "\n".join(cell.source for cell in notebook.nb.cells)
    assert not anatomy.LOCAL_PATH.search(source)
    for cell in notebook.code:
        kept_back = "### BEGIN" in cell.source
        assert len(cell.source.splitlines()) <= (HIDDEN_LINES if kept_back else LINES), cell.source.splitlines()[0]
    assert 4 <= len(by_task(notebook.nb)) <= 6


def test_a_broken_rule_is_seen():
    nb = nbformat.read(SETS[0], as_version=4)
    nb.cells[0].source = "# Simply no question\n\n![](picture.png)"
    found = [text for name in RULES for text in anatomy.RULES[name](Notebook(SETS[0], nb))]
    assert len(found) == 4  # the title, the image's silence, its address, the word


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path):
    code = Notebook.read(path).code
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_ids_and_kinds_of_cells(path: Path):
    nb, prefix = nbformat.read(path, as_version=4), path.stem.split("_")[0]
    meta = [(cell, cell.metadata["nbgrader"]) for cell in nb.cells if "nbgrader" in cell.metadata]
    names = [one["grade_id"] for _, one in meta]
    assert len(set(names)) == len(names)
    assert all(name.startswith(f"{prefix}-") for name in names)
    for cell, one in meta:
        hidden, solution = "HIDDEN TESTS" in cell.source, "SOLUTION" in cell.source
        assert one["schema_version"] == 3
        assert one["locked"] == (not one["solution"]), "tests and given cells are locked, answers are not"
        assert not hidden or (one["grade"] and one["locked"])
        assert solution == (one["solution"] and cell.cell_type == "code")
        if one["grade"] and cell.cell_type == "code":
            task = re.match(r"# (\d[a-d]) · (\d) points?(, hidden)?: ", cell.source)
            assert (f"{prefix}-{task[1]}", int(task[2]), bool(task[3])) == (one["grade_id"], one["points"], hidden)
    plain = [cell for cell in nb.cells if "nbgrader" not in cell.metadata]
    assert all(cell.cell_type == "markdown" for cell in plain)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_partial_credit_adds_up(path: Path):
    """A cell that gives points for each of its parts names them in its first line and cannot give more than it has."""
    divided = 0
    for cell in Notebook.read(path).code:
        parts = re.search(r"for _worth, _part in \((.*)\):\n", cell.source)
        meta = cell.metadata["nbgrader"]
        if parts is None:
            assert not meta["grade"] or meta["points"] == 1, "a cell of more than one point gives part of them"
            continue
        divided += 1
        worth = [float(n) for n in re.findall(r"\(([\d.]+), _\w+\)", parts[1])]
        first = [float(n) for n in re.findall(r" \(([\d.]+)\)", cell.source.splitlines()[0])]
        assert worth == first
        assert sum(worth) == meta["points"]
        assert cell.source.splitlines()[-2:] == ["_points", "### END HIDDEN TESTS"]
    assert divided >= 3


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_learner_sees_formulas_and_no_apparatus(path: Path):
    nb = nbformat.read(path, as_version=4)
    tasks = [cell.source for cell in nb.cells if cell.source.startswith("## Task ")]
    assert sum("$$" in task for task in tasks) >= 2
    assert sum("$$" in task or "graded by a person" in task for task in tasks) >= len(tasks) - 3
    code = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "code")
    assert not re.search(r"\bclaim\(|claim=|\balt=|expect=", code)
    prose = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    assert [word for word in OLD_WORDS if re.search(rf"\b{word}\b", prose + code, re.I)] == []


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_its_table_agrees_with_its_cells(path: Path):
    nb = nbformat.read(path, as_version=4)
    _, *tasks, total = rows(nb.cells[0].source)
    assert {task[0]: int(task[2]) for task in tasks} == by_task(nb)
    minutes = sum(int(task[3].split()[0]) for task in tasks)
    assert total[2:] == [str(TOTAL[path.stem]), f"{minutes} minutes"]
    assert sum(graded(nb).values()) == TOTAL[path.stem]
    assert f"Allow yourself about {minutes} minutes" in nb.cells[0].source
    titles = [title for level, title in headings("\n\n".join(cell.source for cell in nb.cells)) if level == 2]
    assert [title[:6] for title in titles if title.startswith("Task")] == [f"Task {task[0]}" for task in tasks]


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_its_box_says_what_was_measured(path: Path):
    nb, row = nbformat.read(path, as_version=4), measured()[path.stem]
    assert BOX.search(nb.cells[0].source)[0] == words(row)
    assert row["code"] == fingerprint(nb), (
        "changed since: python tools/measure_notebooks.py assignments/source/*/*.ipynb"
    )


def test_nothing_of_a_course_folder_is_kept_here():
    kept = subprocess.run(["git", "ls-files", "assignments"], cwd=ROOT, capture_output=True, text=True, check=False)
    odd = re.compile(r"release|submitted|autograded|feedback|gradebook|grades|ps5_project\.json|my_heads")
    assert [name for name in kept.stdout.splitlines() if odd.search(name)] == []


def test_no_test_of_grading_is_skipped_where_nbgrader_is_missing():
    word = "import" + "orskip"
    assert [path.name for path in Path(__file__).parent.glob("*.py") if word in path.read_text("utf-8")] == []


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_the_house_rules(name: str):
    text = read(name)
    assert not re.search(r"\b(simply|obviously|as you can see)\b", FENCE.sub("", text).lower())
    assert not anatomy.LOCAL_PATH.search(text)
    anchors = {slug(title) for _, title in headings(text)}
    for link in links(text):
        path, _, anchor = link.partition("#")
        assert re.match(r"https?:", link) or not path or ((ROOT / name).parent / path).exists(), link
        assert path or slug(anchor) in anchors, link


def section(text: str, title: str) -> str:
    return re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", text, re.S | re.M)[0]


def test_the_guide_names_every_task_and_its_points():
    _, *table = rows(section(read("notebooks/teaching.md"), "What the problem sets test"))
    points = [(task, int(worth)) for _, task, _, worth in table]
    assert points == [row for path in SETS for row in by_task(nbformat.read(path, as_version=4)).items()]


def test_the_timetables_hold_every_lesson_once_and_add_up():
    boxes = {path.name[:2]: Notebook.read(path).markdown for path in lessons(ROOT / "notebooks")}
    minutes = {number: int(re.search(r"Allow yourself about (\d+) minutes", box)[1]) for number, box in boxes.items()}
    text = section(read("notebooks/teaching.md"), "Timetables")
    tables = re.split(r"^\*\*\w+ sessions of (\d+) minutes\*\*", text, flags=re.M)[1:]
    assert [len(rows(table)) - 1 for table in tables[1::2]] == [6, 10, 13]
    for length, table in zip(tables[::2], tables[1::2], strict=True):
        sessions = [(row[1].split(", ") if row[1] != "none" else [], int(row[2])) for row in rows(table)[1:]]
        assert [number for some, _ in sessions for number in some] == sorted(minutes)
        for some, told in sessions:
            assert sum(minutes[number] for number in some) == told
        assert sum(told for _, told in sessions) == sum(minutes.values())
        assert int(length) in (90, 120, 180)


def test_the_sizing_holds():
    rest = json.loads(read("notebooks/measured.json"))["lessons"]
    assert max(row["megabytes"] for row in [*rest.values(), *measured().values()]) <= 1000
    text = section(read("notebooks/teaching.md"), "Sizing a JupyterHub")
    assert "1,000 MB or a minute" in text
    assert "JupyterLab itself takes 125 MB" in text
    for learners, memory, cores, wait in rows(text)[1:]:
        assert memory == f"{int(learners) * 1.2:.0f} GB"
        assert wait == f"{math.ceil(int(learners) / int(cores))} minutes"


def test_marking_tells_the_marks_that_are_given():
    by_mistake = {row[0]: row for row in rows(read("assignments/instructor/marking.md"))}
    for path in SETS:
        nb = nbformat.read(path, as_version=4)
        points = {name.split("-")[1]: worth for name, worth in graded(nb).items()}
        part = section(read("assignments/instructor/marking.md"), f"Problem set {path.stem[2]}")
        assert {row[0]: int(row[1]) for row in rows(part) if row[0] in points} == points
        worth = {cell: n for cell, n in points.items() if cell[-1].isalpha()}  # the others are given by a person
        for what, one in WRONG[path.stem].items():
            assert what in part
            left = one.points(worth)
            lost = {cell: worth[cell] - left[cell] for cell in sorted(one.lost)}
            loses = [cell if n == worth[cell] else f"{cell} ({n:g} of {worth[cell]})" for cell, n in lost.items()]
            assert by_mistake[what][1:3] == [", ".join(loses), f"{sum(left.values()):g} of {sum(worth.values())}"]


def test_the_rubric_of_the_project_adds_up():
    part = section(read("assignments/instructor/marking.md"), "Rubric of the project")
    points = {row[0]: int(row[1]) for row in rows(part)[1:]}
    assert sum(points.values()) == 30
    by_tests = sum(n for what, n in points.items() if what.startswith("*tests:*"))
    assert by_tests == sum(n for cell, n in graded(nbformat.read(SETS[4], as_version=4)).items() if cell[-1].isalpha())
    lesson = Notebook.read(next(path for path in lessons(ROOT / "notebooks") if path.name.startswith("12_"))).markdown
    assert "*Two to three hours, thirty points.*" in lesson, "the project of lesson 12 has as many points"


def test_the_exam_has_answers_and_they_are_right():
    text = read("assignments/instructor/exam.md")
    parts = re.split(r"^\*\*(\d+)\.\*\* \(\d\d, \d points(?:, by hand)?\) ", text, flags=re.M)[1:]
    answers = {int(n): body.split("*Answer.*")[1] for n, body in zip(parts[::2], parts[1::2], strict=True)}
    assert list(answers) == list(range(1, len(answers) + 1))
    assert len(answers) >= 24
    assert all(len(answer.split()) > 5 for answer in answers.values())
    lump = 1 / (1 + math.exp(0.33 * math.log(11)))
    luck = sum(math.comb(9, i) * math.comb(39, 10 - i) for i in range(6, 11)) / math.comb(48, 10)
    head, rest = 4 * 20 * 128**2 // 8 + 2 * 20**2 * 128 // 8, 2 * 20 * 128 * 512
    right = {
        2: f"{4 * 100 * 256**2 + 2 * 100**2 * 256:,}",
        3: f"{2 * 32 * 8 * 128 * 4096 * 2 // 2**20} MiB",
        6: f"{math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4)):.2f}",
        15: f"{(1 / 4 + 1 / 5 + 1 / 6) / 3:.3f}",
        24: f"{1 - 2 * lump:.3f}",
        26: f"{luck:.4f}",
        27: f"{100 * (3 * head + rest) / (8 * head + rest):.0f} %",
        29: f"{41 / 51:.2f}",
        31: f"{48 * 0.5 * math.erfc(0.6 / math.sqrt(2)):.0f} gates",
        32: f"{0.025 * 144 * 5:.0f} by luck",
    }
    for number, told in right.items():
        assert told in answers[number].replace("\n", " "), number
