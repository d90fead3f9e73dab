"""What fails on Windows or on a Mac and can be seen elsewhere: names of files, letters, line ends, open files."""

import ast
import re
from pathlib import Path

import pytest

import headtools as ht

RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in "123456789")}
FOLDERS = ("headtools", "recipes", "tests", "tools", "notebooks", "assignments", "binder", ".github")
PASSING = {"__pycache__", ".ipynb_checkpoints"}
LONGEST = 120  # of a path inside the repository: Windows takes 260 signs, with the folder that it lies in


def wrong(name):
    """Why Windows would refuse a file of this name, or give it another; None where it takes it."""
    if re.search(r'[<>:"/\\|?*\x00-\x1f]', name):
        return "a sign that stands for something else"
    if name.endswith((".", " ")) or name.startswith(" "):
        return "an end that is taken off"
    if name.split(".")[0].strip().lower() in RESERVED:
        return "a device's name"
    return None if name.isascii() and len(name) < 200 else "other letters, or too many"


@pytest.mark.parametrize("name", ["a:b.json", "Aux.py", "con", "nul.tar.gz", "a ", "a.", "b?", "5|1", "x" * 250, "é"])
def test_wrong_names_are_seen(name):
    assert wrong(name)
    assert not wrong("batch-000001.safetensors.0a1b2c.part")


def test_names_in_the_repository(root):
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*") if not PASSING & {*path.parts}]
    assert len(files) > 300
    seen = {}
    for path in files:
        inside = path.relative_to(root).as_posix()
        assert not wrong(path.name), inside
        assert len(inside) <= LONGEST, inside
        assert seen.setdefault(inside.lower(), inside) == inside, "one file where letters of both cases are the same"


def opened_without_encoding(source):
    """Lines that read or write text in whatever letters the system likes best."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg for keyword in node.keywords}
        place = {"read_text": 0, "write_text": 1, "open": 1}.get(name)
        if place is None or "encoding" in given or (isinstance(node.func, ast.Attribute) and name == "open"):
            continue
        mode = next((a.value for a in node.args[1:2] if name == "open" and isinstance(a, ast.Constant)), "")
        if name == "open":
            if "b" not in mode:
                yield node.lineno
        elif len(node.args) <= place:
            yield node.lineno


def test_text_is_utf_8_everywhere(root):
    assert [*opened_without_encoding("p.read_text()\np.write_text(x)\nopen(p)\nopen(p, 'w')")] == [1, 2, 3, 4]
    assert not [*opened_without_encoding("p.read_text('utf-8')\np.write_text(x, encoding='utf-8')\nopen(p, 'rb')")]
    found = [
        (path.relative_to(root).as_posix(), line)
        for folder in ("headtools", "tools")
        for path in sorted((root / folder).rglob("*.py"))
        for line in opened_without_encoding(path.read_text("utf-8"))
    ]
    assert not found


def test_line_ends_are_not_changed_by_git(root):
    """Git for Windows would write CRLF into config.json, whose checksum is that of its bytes."""
    assert "* text=auto eol=lf" in (root / ".gitattributes").read_text("utf-8").splitlines()
    for path in (root / "headtools").rglob("*.json"):
        assert b"\r" not in path.read_bytes(), path


def test_a_treebank_that_went_through_an_editor_of_windows(tmp_path):
    english = Path(ht.__file__).parent / "roles" / "assets" / "english.conllu"
    (tmp_path / "c.conllu").write_bytes(b"\xef\xbb\xbf" + english.read_bytes().replace(b"\n", b"\r\n"))
    assert ht.corpus(tmp_path / "c.conllu") == ht.corpus("english", "all")


@pytest.mark.parametrize("name", [r"C:\no\no", r"models\no", "C:no", r"\\server\no", "a/b/no", "./no", "/no"])
def test_a_path_is_no_name_on_the_hub(name):
    with pytest.raises(FileNotFoundError, match="nothing is there; expected a folder with"):
        ht.load(name)
