"""The whole way of a problem set: handed out, solved well, badly or not at all, collected, graded, exported."""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hand_out
import nbformat
import pytest
import warm_kernel
from nbgrader.apps import NbGraderAPI
from wrong import WRONG

SETS = ("ps1_mathematics", "ps2_roles", "ps3_importance", "ps4_pruning")
WRITTEN = 4  # points that only a person gives
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.S)
HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN TESTS", re.S)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that start warm, where that can be done."""
    if sys.platform != "linux":
        yield
        return
    with warm_kernel.started(tmp_path_factory.mktemp("warm")) as names, pytest.MonkeyPatch.context() as patch:
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


def grade(api: NbGraderAPI, name: str, student: str, nb: nbformat.NotebookNode) -> dict[str, float]:
    """Hand in, grade, and return the points of each cell, named without the set's name: {"1a": 1.0, ...}."""
    path = folder_of(api) / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(nb, path)
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
    return full(api, name) | {"5": 0}


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
        assert sum(bool(HIDDEN.search(cell)) for cell in cells) == 8
        assert sum(bool(SOLUTION.search(cell)) for cell in cells) >= 4


def test_a_folder_with_grades_is_not_overwritten(course: NbGraderAPI):
    with pytest.raises(FileExistsError, match="perhaps with grades"):
        hand_out.make(folder_of(course))


# --- marks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_the_solution_gets_all_automatic_points(course: NbGraderAPI, name: str):
    assert grade(course, name, "reference", notebook(course, "source", name)) == automatic(course, name)
    with course.gradebook as gradebook:
        submission = gradebook.find_submission(name, "reference")
        assert (submission.score, submission.max_score) == (20 - WRITTEN, 20)
        assert submission.needs_manual_grade


@pytest.mark.parametrize("name", SETS)
def test_a_blank_submission_gets_none(course: NbGraderAPI, name: str):
    assert set(grade(course, name, "blank", notebook(course, "release", name)).values()) == {0}
    with course.gradebook as gradebook:
        assert not gradebook.find_submission(name, "blank").needs_manual_grade, "a blank text needs no reader"


@pytest.mark.parametrize(("name", "what"), [(name, what) for name in SETS for what in WRONG[name]])
def test_a_typical_wrong_submission_gets_its_marks(course: NbGraderAPI, name: str, what: str):
    one = WRONG[name][what]
    nb = answered(notebook(course, "source", name), name, one.answers)
    student = f"wrong{list(WRONG[name]).index(what)}"
    worth = automatic(course, name)
    assert one.lost < set(worth)
    assert grade(course, name, student, nb) == {cell: 0 if cell in one.lost else n for cell, n in worth.items()}


def test_what_raises_or_hangs_costs_its_own_points_only(course: NbGraderAPI):
    name = "ps4_pruning"
    patient = hand_out.grading(folder_of(course), Execute={"timeout": 25})
    nb = answered(notebook(course, "source", name), name, {
        "1": "def gate_with(p_zero, p_one, low=-0.1, high=1.1:",  # no Python
        "2": "import time\n\ntime.sleep(10_000)",  # never ends
        "3": "def cut_with_means(weight, bias, means, gone):\n    return weight @ bias @ means",  # raises when called
    })  # fmt: skip
    worth = automatic(course, name)
    assert grade(patient, name, "unlucky", nb) == {cell: n if cell[0] == "4" else 0 for cell, n in worth.items()}
    assert grade(patient, name, "next", notebook(course, "source", name)) == worth


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


# --- another variant --------------------------------------------------------------------------------------------------


def test_another_variant_asks_for_other_numbers_and_the_solution_follows(course: NbGraderAPI, tmp_path: Path):
    made = hand_out.make(tmp_path / "autumn", variant=8)  # 8: no layer, head or word is that of variant 1
    other = hand_out.grading(folder_of(made), Execute={"timeout": 300})
    for name in SETS:
        assert grade(other, name, "reference", notebook(other, "source", name)) == automatic(other, name)
        said = [told_by(api, name) for api in (course, other)]
        assert said[0]
        assert said[0] != said[1], "the variant changes nothing"


def told_by(api: NbGraderAPI, name: str) -> str:
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
    nb = answered(notebook(course, "release", name), name, {"3": WRONG[name][list(WRONG[name])[1]].answers["3"]})
    arrived = folder / "downloaded" / name / "archive" / f"ada-l_{name}.ipynb"
    arrived.parent.mkdir(parents=True)
    nbformat.write(nb, arrived)
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for command in commands:
        more = ["--student=ada-l"] if command[1] == "autograde" else []  # the others are graded already
        run = [sys.executable, "-m", "nbgrader", *command[1:], *more]
        done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with (folder / "grades.csv").open() as file:
        marks = {(row["assignment"], row["student_id"]): float(row["raw_score"]) for row in csv.DictReader(file)}
    assert marks[name, "ada-l"] == 3
    assert marks[name, "reference"] == 16
    assert marks[name, "blank"] == 0


def test_points_given_by_a_person_are_added(course: NbGraderAPI):
    name = "ps2_roles"
    with course.gradebook as gradebook:
        one = gradebook.find_grade("ps2-5", name, name, "reference")
        one.manual_score, one.needs_manual_grade = 3, False
        gradebook.db.commit()
        submission = gradebook.find_submission(name, "reference")
        assert submission.score == 19
        assert not submission.needs_manual_grade
