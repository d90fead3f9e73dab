"""The whole cycle of a problem set: handed out, solved well, badly or not at all, collected, graded, exported."""

import contextlib
import csv
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hand_out
import nbformat
import pytest
import warm_kernel
from lesson_parts import Notebook, lessons
from nbgrader.apps import NbGraderAPI
from wrong import WRONG, changed

from headtools.course.exercises import all_exercises

pytestmark = pytest.mark.full

SETS = ("ps1_mathematics", "ps2_roles", "ps3_importance", "ps4_pruning", "ps5_project")
HIDDEN_CELLS = {"ps1_mathematics": 9, "ps2_roles": 9, "ps3_importance": 9, "ps4_pruning": 10, "ps5_project": 3}
ROOT = Path(__file__).resolve().parents[2]
GRADED = ("contributions", "ov", "effective_rank", "overlap", "offset_pairs", "relation_pairs", "best_offset", "hits")
GRADED += ("induction_score", "gates", "gradient", "ablation", "HardConcrete", "pruning_curve", "slice_layer")
LIBRARY = {"my_heads.py": (ROOT / "headtools" / "course" / "my_heads.py").read_text("utf-8")}  # what a good learner has
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.S)
HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN TESTS", re.S)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that start warm, where that can be done, and keep what is learned, as a lecturer's do."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as running:
        patch.delenv("HEADTOOLS_PROGRESS")
        names = {}
        if sys.platform == "linux":
            names = running.enter_context(warm_kernel.started(tmp_path_factory.mktemp("warm")))
        for name, value in names.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, kernels: None) -> NbGraderAPI:
    """A course folder with all problem sets handed out."""
    api = hand_out.make(tmp_path_factory.mktemp("course") / "spring term")
    return hand_out.grading(folder_of(api), Execute={"timeout": 300})  # so that a busy machine changes no marks


def folder_of(api: NbGraderAPI) -> Path:
    return Path(api.coursedir.root)


def notebook(api: NbGraderAPI, version: str, name: str) -> nbformat.NotebookNode:
    return nbformat.read(folder_of(api) / version / name / f"{name}.ipynb", as_version=4)


def graded(cell: nbformat.NotebookNode) -> dict:
    return cell.metadata.get("nbgrader", {})


def answered(nb: nbformat.NotebookNode, name: str, answers: dict[str, str]) -> nbformat.NotebookNode:
    """A submission with some answers replaced, named without the set's name, as "1" or "4-loudest"."""
    cells = {graded(cell).get("grade_id"): cell for cell in nb.cells}
    for part, code in answers.items():
        cells[f"{name.split('_')[0]}-{part}"].source = code
    return nb


def grade(
    api: NbGraderAPI, name: str, student: str, nb: nbformat.NotebookNode, files: dict[str, str] | None = None
) -> dict[str, float]:
    """Hand in, grade, and return the points of each cell, named without the set's name: {"1a": 1.0, ...}.

    ``files``: {name: text} of what is handed in beside the notebook.
    """
    path = folder_of(api) / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(nb, path)
    for beside, text in (files or {}).items():
        (path.parent / beside).write_text(text, "utf-8")
    done = api.autograde(name, student, create=True)
    assert done["success"], done
    return points(api, name, student)


def points(api: NbGraderAPI, name: str, student: str) -> dict[str, float]:
    with api.gradebook as gradebook:
        (part,) = gradebook.find_submission(name, student).notebooks
        return {one.name.split("-", 1)[1]: one.score for one in part.grades}


def full(api: NbGraderAPI, name: str) -> dict[str, int]:
    """What each cell is worth."""
    cells = [graded(cell) for cell in notebook(api, "source", name).cells]
    return {one["grade_id"].split("-", 1)[1]: one["points"] for one in cells if one.get("grade")}


def automatic(api: NbGraderAPI, name: str) -> dict[str, int]:
    """What each cell is worth to the tests: nothing where only a person gives points."""
    return {cell: worth if cell[-1].isalpha() else 0 for cell, worth in full(api, name).items()}


# --- what learners get ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_the_release_version_holds_no_answer_and_no_hidden_test(course: NbGraderAPI, name: str):
    source, release = (notebook(course, version, name) for version in ("source", "release"))
    given_away = "\n".join(cell.source for cell in release.cells)
    assert not re.search(r"SOLUTION|HIDDEN|Model answer|\*Points\.\*", given_away)
    for cell in source.cells:
        secrets = "\n".join(SOLUTION.findall(cell.source) + HIDDEN.findall(cell.source))
        if graded(cell).get("solution") and cell.cell_type == "markdown":
            secrets = cell.source
        lines = {line.strip() for line in secrets.splitlines() if len(line.strip()) > 20}
        assert not [line for line in lines if line in given_away]
    assert all(not cell.get("outputs") for cell in release.cells)
    assert len(release.cells) == len(source.cells)
    assert {graded(cell).get("points") for cell in release.cells} == {
        graded(cell).get("points") for cell in source.cells
    }


def test_hidden_tests_and_solutions_are_where_the_test_above_looks(course: NbGraderAPI):
    for name in SETS:
        cells = [cell.source for cell in notebook(course, "source", name).cells]
        assert sum(bool(HIDDEN.search(cell)) for cell in cells) == HIDDEN_CELLS[name]
        assert sum(bool(SOLUTION.search(cell)) for cell in cells) >= 2


def test_a_folder_with_grades_is_not_overwritten(course: NbGraderAPI):
    with pytest.raises(FileExistsError, match="perhaps with grades"):
        hand_out.make(folder_of(course))


# --- marks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_the_solution_gets_all_automatic_points(course: NbGraderAPI, name: str):
    assert grade(course, name, "reference", notebook(course, "source", name), LIBRARY) == automatic(course, name)
    with course.gradebook as gradebook:
        submission = gradebook.find_submission(name, "reference")
        assert (submission.score, submission.max_score) == (
            sum(automatic(course, name).values()),
            sum(full(course, name).values()),
        )
        assert submission.needs_manual_grade


@pytest.mark.parametrize("name", SETS)
def test_a_blank_submission_gets_none(course: NbGraderAPI, name: str):
    assert set(grade(course, name, "blank", notebook(course, "release", name)).values()) == {0}
    with course.gradebook as gradebook:
        assert not gradebook.find_submission(name, "blank").needs_manual_grade, "a blank text needs no reader"


@pytest.mark.parametrize(  # every set's first each time, all others once a week
    ("name", "what"),
    [
        pytest.param(name, what, marks=[pytest.mark.weekly] if number else [])
        for name in SETS
        for number, what in enumerate(WRONG[name])
    ],
)
def test_a_typical_wrong_submission_gets_its_marks(course: NbGraderAPI, name: str, what: str):
    one = WRONG[name][what]
    nb = notebook(course, "source", name)
    cells = {graded(cell).get("grade_id"): cell for cell in nb.cells}
    for part, pairs in one.changes.items():
        cell = cells[f"{name.split('_')[0]}-{part}"]
        cell.source = changed(cell.source, pairs)
    student = f"wrong{list(WRONG[name]).index(what)}"
    worth = automatic(course, name)
    assert set(one.lost) < set(worth)
    assert grade(course, name, student, nb, LIBRARY) == one.points(worth)


def test_part_of_a_question_gives_part_of_its_points():
    """Each set has a cell in which some wrong submission keeps a part; so partial credit is tested above."""
    for name in SETS:
        assert [cell for one in WRONG[name].values() for cell, lost in one.lost.items() if lost is not None], name


def test_a_project_is_graded_from_its_file_without_its_model(course: NbGraderAPI):
    name = "ps5_project"
    draw = random.Random(0)
    head, before = [draw.random() for _ in range(30)], [1 + draw.random() for _ in range(30)]
    rule, after = [x - 0.1 - 0.1 * draw.random() for x in head], [x + draw.random() for x in before]
    controls = [[x + 0.5 * draw.random() for x in before] for _ in range(6)]

    def with_interval(values: list[float]) -> list[float]:
        mean, reach = statistics.mean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5
        return [mean, mean - reach, mean + reach]

    results = {
        "model": "a model that only its owner has",
        "head": ["decoder", 7, 3],
        "score": "made up for this test",
        "choosing": ["one"],
        "measuring": [f"sentence {i}" for i in range(30)],
        "scores": {"head": head, "rule": rule, "untrained": rule[::-1]},
        "tokens": ["a", "b"],
        "map": [[1, 0], [0.5, 0.5]],
        "difference": with_interval([a - b for a, b in zip(head, rule, strict=True)]),
        "losses": {"before": before, "after": after, "controls": controls},
        "rise": with_interval([a - b for a, b in zip(after, before, strict=True)]),
        "rise_over_controls": [0, -1, 1],  # not what follows from the losses
    }
    worth = automatic(course, name)
    nb = notebook(course, "release", name)
    given = grade(course, name, "own-model", nb, {f"{name}.json": json.dumps(results)})
    assert given == worth | {"3b": 2}
    results["scores"]["rule"] = [0.0] * 30  # no rule at all
    given = grade(course, name, "zeros", nb, {f"{name}.json": json.dumps(results)})
    assert given["2a"] == 2


def test_what_raises_or_hangs_costs_its_own_points_only(course: NbGraderAPI):
    name = "ps4_pruning"
    patient = hand_out.grading(folder_of(course), Execute={"timeout": 25})
    nb = answered(
        notebook(course, "source", name),
        name,
        {
            "1": "def gate_with(p_zero, p_one, gamma=-0.1, zeta=1.1:",  # no Python
            "2-loop": "import time\n\ntime.sleep(10_000)",  # never ends
            "4": "def cut_with_means(weight, bias, means, gone):\n    return weight @ bias @ "
            "means",  # raises when called
        },
    )
    worth = automatic(course, name)
    kept = {"2a", "2b", "3a", "3b", "3c", "6a", "6b"}
    assert grade(patient, name, "unlucky", nb, LIBRARY) == {cell: n if cell in kept else 0 for cell, n in worth.items()}


def test_changed_tests_and_points_are_put_back(course: NbGraderAPI):
    name = "ps1_mathematics"
    nb = notebook(course, "release", name)
    for cell in nb.cells:
        if graded(cell).get("grade") and cell.cell_type == "code":
            cell.source, cell.metadata["nbgrader"]["points"] = "pass", 100
        if graded(cell).get("grade_id") == "ps1-variant":
            cell.source = "LAYER = 0"
    assert set(grade(course, name, "bold", nb).values()) == {0}
    (path,) = (folder_of(course) / "autograded" / "bold").rglob("*.ipynb")
    assert "VARIANT = 1" in path.read_text("utf-8")


# --- the learner's library --------------------------------------------------------------------------------------------


def folded() -> str:
    """A library made of the folded solutions of all lessons, as a learner's is who wrote what they show."""
    parts = ["import copy", "import math", "from contextlib import contextmanager", "from types import SimpleNamespace"]
    parts += ["import torch", "from scipy import stats", "from torch import nn", "import headtools as ht"]
    parts += ["mine = ht.my_heads()"]
    for path in lessons(ROOT / "notebooks"):
        lesson = Notebook.read(path)
        for part in lesson.exercises():
            named = re.match(r'ht\.check\("(.+?)"', lesson.nb.cells[part.check].source)
            if named and all_exercises()[named[1]].builds in GRADED:
                parts.append(lesson.solution_code(part))
    return "\n\n".join(parts)


@pytest.mark.parametrize("name", SETS[:4])
def test_the_folded_solutions_get_all_points_of_the_library(course: NbGraderAPI, name: str):
    points = grade(course, name, "folded", notebook(course, "release", name), {"my_heads.py": folded()})
    assert {cell for cell, n in points.items() if n} == {"6a", "6b"}
    assert (points["6a"], points["6b"]) == (1, 3)


@pytest.mark.parametrize(
    ("what", "change", "expected"),
    [
        ("without the file", None, (0, 0)),
        ("gates that scale by the root", ("* gate.view(-1", "* gate.sqrt().view(-1"), (1, 1)),
        pytest.param(
            "no sign",
            ("torch.cat(parts) for key, parts", "torch.cat(parts).abs() for key, parts"),
            (1, 2),
            marks=pytest.mark.weekly,
        ),
        ("the package's gradient", ("def gradient(", "from headtools import gradient\ndef other("), (1, 2)),
        pytest.param(
            "a call of the package",
            ("    whole = torch", "    ht.ablation\n    whole = torch"),
            (1, 2),
            marks=pytest.mark.weekly,
        ),
        pytest.param("no Python", ("def gates(", "def gates:"), (0, 0), marks=pytest.mark.weekly),
    ],
)  # fmt: skip
def test_a_library_loses_what_it_gets_wrong(course: NbGraderAPI, what: str, change: tuple | None, expected: tuple):
    name, files = "ps3_importance", {}
    if change is not None:
        assert change[0] in folded()
        files = {"my_heads.py": folded().replace(*change)}
    points = grade(course, name, what.replace(" ", "-"), notebook(course, "release", name), files)
    assert (points["6a"], points["6b"]) == expected


# --- another variant --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, kernels: None) -> NbGraderAPI:
    """A course folder of another variant."""
    made = hand_out.make(tmp_path_factory.mktemp("course") / "autumn", variant=8)  # no layer, head or word of variant 1
    return hand_out.grading(folder_of(made), Execute={"timeout": 300})


@pytest.mark.parametrize("name", [SETS[0], *(pytest.param(name, marks=pytest.mark.weekly) for name in SETS[1:])])
def test_another_variant_asks_for_other_numbers_and_the_solution_follows(
    course: NbGraderAPI, other: NbGraderAPI, name: str
):
    assert grade(other, name, "reference", notebook(other, "source", name), LIBRARY) == automatic(other, name)
    printed = [printed_by(api, name) for api in (course, other)]
    assert printed[0]
    assert printed[0] != printed[1], "the variant changes nothing"


def printed_by(api: NbGraderAPI, name: str) -> str:
    """What the variant's cell printed when the reference was graded."""
    nb = nbformat.read(folder_of(api) / "autograded" / "reference" / name / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in nb.cells if hand_out.VARIANT.search(cell.source)]
    return "".join(out.get("text", "") for out in cell.outputs)


def test_a_notebook_without_a_variant_is_refused():
    with pytest.raises(ValueError, match="0 cells set VARIANT"):
        hand_out.with_variant(nbformat.v4.new_notebook(), 3)


# --- what a lecturer types --------------------------------------------------------------------------------------------


def test_the_three_commands_of_the_guide_collect_grade_and_export(course: NbGraderAPI, root: Path):
    guide = (root / "notebooks" / "teaching.md").read_text("utf-8")
    block = re.search(r"## Grading in three commands.*?```sh\n(.*?)```", guide, re.S)[1]
    commands = [line.split("#")[0].split() for line in block.splitlines() if line.startswith("nbgrader ")]
    assert [command[1] for command in commands] == ["zip_collect", "autograde", "export"]
    name, folder = "ps1_mathematics", folder_of(course)
    assert commands[0][2] == commands[1][2] == name
    right = "def singular_values(W_V, W_O):\n    return torch.linalg.svdvals(W_V @ W_O)[: W_V.shape[1]]"
    nb = answered(notebook(course, "release", name), name, {"3": right})
    arrived = folder / "downloaded" / name / "archive" / f"ada-l_{name}.ipynb"
    arrived.parent.mkdir(parents=True)
    nbformat.write(nb, arrived)
    arrived.with_name("ada-l_my_heads.py").write_text(LIBRARY["my_heads.py"], "utf-8")
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for command in commands:
        more = ["--student=ada-l"] if command[1] == "autograde" else []  # the others are graded already
        run = [sys.executable, "-m", "nbgrader", *command[1:], *more]
        done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with (folder / "grades.csv").open() as file:
        marks = {(row["assignment"], row["student_id"]): float(row["raw_score"]) for row in csv.DictReader(file)}
    assert marks[name, "ada-l"] == 3 + 4  # task 3, and the library
    assert marks[name, "reference"] == 20
    assert marks[name, "blank"] == 0


def test_points_given_by_a_person_are_added(course: NbGraderAPI):
    name = "ps2_roles"
    with course.gradebook as gradebook:
        one = gradebook.find_grade("ps2-5", name, name, "reference")
        one.manual_score, one.needs_manual_grade = 3, False
        gradebook.db.commit()
        submission = gradebook.find_submission(name, "reference")
        assert submission.score == 23
        assert not submission.needs_manual_grade
