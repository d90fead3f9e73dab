"""Marks find their places in what Canvas and Moodle export, and nothing else changes."""

import csv
import io
import subprocess
import sys

import grade_sheet
import pytest

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Problem set 1 (11),Problem set 10 (12),Final Score
    Points Possible,,,,,24,24,(read only)
"Lovelace, Ada",501,U1,ada-l,"A, B",,3,0
"Noether, Emmy",502,U2,emmy,"A, B",12,,0
"""
MOODLE = """First name,Surname,ID number,Email address,Assignment: ps1_mathematics (Real),Course total (Real)
Ada,Lovelace,U1,Ada-L@example.org,-,-
"""
NBGRADER = """assignment,duedate,timestamp,student_id,email,raw_score,late_submission_penalty,score,max_score
ps1_mathematics,None,2026-11-01 10:00:00,ada-l,,19.0,1.0,18.0,24.0
ps1_mathematics,None,,emmy,,0.0,0.0,0.0,24.0
"""


def rows(text):
    return list(csv.reader(io.StringIO(text)))


def marks():
    return grade_sheet.points(csv.DictReader(io.StringIO(NBGRADER)))


@pytest.mark.parametrize(("sheet", "cell"), [(CANVAS, (2, 5)), (MOODLE, (1, 4))], ids=["canvas", "moodle"])
def test_one_mark_changes_one_cell(sheet, cell):
    text, left = grade_sheet.filled(sheet, marks())
    before, after = rows(sheet), rows(text)
    assert left == []
    assert after[cell[0]][cell[1]] == "18.0"  # after what lateness costs
    after[cell[0]][cell[1]] = before[cell[0]][cell[1]]
    assert after == before  # Emmy handed nothing in, and keeps what the platform has


def test_what_has_no_place_is_told():
    more = {("ps1_mathematics", "nobody"): "3.0", ("ps5_project", "ada-l"): "4.0"}
    text, left = grade_sheet.filled(CANVAS, more)
    assert rows(text) == rows(CANVAS)
    assert [line.split(":")[0] for line in left] == ["ps5_project", "nobody"]


def test_a_sheet_that_cannot_be_read_right_is_refused():
    with pytest.raises(ValueError, match="no column says who a learner is; it has Student, Problem set 1"):
        grade_sheet.filled("Student,Problem set 1\nAda,\n", marks())
    with pytest.raises(ValueError, match="fits 2 columns"):
        grade_sheet.filled("Username,Problem set 1,Problem Set 1 (late)\nada-l,,\n", marks())
    with pytest.raises(ValueError, match="two rows of the sheet are 'ada-l'"):
        grade_sheet.filled("Email address,ps1_mathematics\nada-l@a.org,\nada-l@b.org,\n", marks())


def test_the_command_writes_the_sheet_and_says_what_is_left(root, tmp_path):
    for name, text in (("sheet.csv", "\ufeff" + MOODLE), ("grades.csv", NBGRADER.replace("emmy", "bob"))):
        (tmp_path / name).write_text(text, "utf-8")
    command = [sys.executable, root / "tools" / "grade_sheet.py", tmp_path / "sheet.csv", tmp_path / "grades.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, rows(done.stdout)[1][4]) == (0, "18.0")
    assert done.stderr == "marks: 1; without a place: 0\n"
