"""The one writer there is: whole files or none, killed at any line, on a full disk, beside rivals, in closed ones."""

import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from headtools._engine import store
from headtools._engine.store import (
    Store,
    atomic_folder,
    atomic_write,
    fingerprint,
    read_tensors,
    summary,
    write_bytes,
    write_tensors,
)

pytest.importorskip("resource", reason="needs fork and limits")

from faults import forked, full_disk, killer, lines_run, over, together, told, without_power

OLD, NEW = {"x": torch.zeros(300)}, {"x": torch.ones(500)}
FILES = [store.__file__]


def write_folder(path, text):
    with atomic_folder(path) as part:
        (part / "a.txt").write_text(text)
        (part / "b").mkdir()
        (part / "b" / "c.txt").write_text(text)


# --- what comes back --------------------------------------------------------------------------------------------------


def test_tensors_and_metadata_of_anything(tmp_path):
    path = tmp_path / "made" / "some.safetensors"
    both = torch.arange(8.0, requires_grad=True)
    tensors = {
        "rows": torch.ones(2, 3, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "every other": both[::2],
        "turned": both.view(2, 4).T,
        "again": both,
    }
    assert write_tensors(path, tensors, {"done": [1, 2], "text": "\ud800"}) == path
    back, metadata = read_tensors(str(path))
    assert metadata == {"done": [1, 2], "text": "\ud800"}
    assert all(back[name].dtype == value.dtype and torch.equal(back[name], value) for name, value in tensors.items())
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_tensors(path, tensors, {"rows": torch.ones(2)})
    assert read_tensors(path)[1]["done"] == [1, 2]
    with pytest.raises(ValueError, match=r"got the name 'a\.pt'; expected \.safetensors: write path='a\.safetensors'"):
        write_tensors(tmp_path / "a.pt", tensors)


def test_damaged_files_are_refused_by_name(tmp_path):
    path = write_tensors(tmp_path / "a.safetensors", OLD, {"n": 1})
    data, draw, refused = path.read_bytes(), random.Random(0), 0
    for size in [*range(0, len(data), 97), *(draw.randrange(len(data)) for _ in range(20))]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"a\.safetensors is damaged, or was not written by.*write it again"):
            read_tensors(path)
        refused += 1
    for _ in range(40):
        place = draw.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
            read_tensors(path)
    assert refused > 30
    odd = (b"", b"{", b"null", b"3", b'{"__metadata__": 3}', b'{"__metadata__": {"headtools": "[]"}}', b"[" * 9000)
    for header in odd:
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
            read_tensors(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_tensors(path)
    path.mkdir()
    with pytest.raises(FileNotFoundError, match="a folder has that name"):
        read_tensors(path)


# --- killed, full, closed, met ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_killed_at_any_line_and_any_byte(tmp_path):
    path = write_tensors(tmp_path / "a.safetensors", OLD)
    size, ends = path.stat().st_size, set()
    number = lines_run(lambda: write_tensors(path, NEW), FILES)
    faults = [killer(FILES, line) for line in range(number)]
    faults += [full_disk(1 + part * size // 20, kill) for part in range(20) for kill in (True, False)]
    for fault in faults:
        write_tensors(path, OLD)
        end = forked(lambda: write_tensors(path, NEW), fault)
        assert end in ("killed", "OSError")
        ends.add((end, len(read_tensors(path)[0]["x"])))
    assert {("killed", 300), ("killed", 500), ("OSError", 300)} == ends
    assert [p for p in tmp_path.iterdir() if p != path and not p.name.endswith(".part")] == []


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    number = lines_run(lambda: write_folder(tmp_path / "count", "x"), FILES)
    for line in range(number):
        folder = tmp_path / str(line)
        forked(lambda folder=folder: write_folder(folder, "x"), killer(FILES, line))
        assert not folder.exists() or (folder / "b" / "c.txt").read_text() == "x"
    with pytest.raises(FileExistsError, match="already exists: choose a new name"):
        write_folder(tmp_path / "count", "y")
    with pytest.raises(TypeError), atomic_folder(tmp_path / "failed") as part:
        (part / "a").write_text(part)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("failed")]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    for before in (None, OLD):
        if before:
            write_tensors(path, before)
        with monkeypatch.context() as patch:
            patch.setattr(store.os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
            kept = "the old one is unchanged" if before else "nothing is there"
            with pytest.raises(OSError, match=f"No space left; .*not written, and {kept}: free") as found:
                write_tensors(path, NEW)
        assert (found.value.errno, found.value.filename) == (28, str(path))
        assert [p.name for p in tmp_path.iterdir()] == ([path.name] if before else [])
    with pytest.raises(OSError, match="No space left on device; the file was not written"), atomic_write(path):
        raise RuntimeError("I/O error (os error 28)")  # as safetensors says it
    message = told(lambda: write_tensors(path, {"x": torch.ones(90_000)}), full_disk(5_000, kill=False))
    assert re.match("OSError: .*File too large; .*not written, and the old one is unchanged: free some space", message)
    with pytest.raises(RuntimeError, match="something else"), atomic_write(path):
        raise RuntimeError("something else")
    assert len(read_tensors(path)[0]["x"]) == 300


def test_files_and_folders_in_the_way(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "a.safetensors", tmp_path / "file" / "b" / "a.safetensors"):
        with pytest.raises(OSError, match="and nothing is there: its folder is a file; choose ano"):
            write_tensors(path, NEW)
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(OSError, match="a folder has that name; choose another"):
        write_tensors(tmp_path / "a.safetensors", NEW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "file"]


def test_read_only_files_and_closed_folders(tmp_path):
    path = write_tensors(tmp_path / "a.safetensors", OLD)
    path.chmod(0o444)
    with pytest.raises(PermissionError, match=r"read-only; .* and the old one is unchanged: make it writ"):
        write_tensors(path, NEW)
    path.chmod(0o644)
    link = tmp_path / "link.safetensors"
    link.symlink_to(path)
    write_tensors(link, NEW)
    assert link.is_symlink()
    assert len(read_tensors(path)[0]["x"]) == 500, "of a link the file that it leads to is replaced"
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    for work in (
        lambda: write_bytes(closed / "b", b"x"),
        lambda: write_folder(closed / "new", "x"),
        lambda: write_bytes(closed / "deep" / "b", b"x"),
        lambda: Store(closed / "run", {}),
    ):
        message = told(work, without_power)
        assert re.match("PermissionError: .*Permission denied; .*and nothing is there: choose a folder that", message)
    assert not list(closed.iterdir())


def test_two_that_write_the_same_file(tmp_path):
    """Each writes its own, the last one stands; at every moment the file is one of them."""
    path, ends = write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(1000)}), {}
    children = together(
        *[lambda n=n: [write_tensors(path, {"x": torch.full((1000,), n)}) for _ in range(40)] for n in (1.0, 2.0)]
    )
    recorded = set()
    while not over(children, ends):
        recorded |= set(read_tensors(path)[0]["x"].unique().tolist())
        assert len(read_tensors(path)[0]["x"].unique()) == 1
    assert set(ends.values()) == {0}
    assert recorded <= {0.0, 1.0, 2.0}
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_the_same_folder(tmp_path):
    ends = {}
    children = together(*[lambda n=n: write_folder(tmp_path / "new", str(n)) for n in range(4)])
    while not over(children, ends):
        pass
    assert sorted(ends.values()) == [0, 3, 3, 3], "one of them wins, the others are told"
    assert (tmp_path / "new" / "a.txt").read_text() == (tmp_path / "new" / "b" / "c.txt").read_text()


# --- fingerprints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Stands for whatever a measure is given."""

    n: int
    words: tuple


DIFFERENT = [
    1,
    1.0,
    "1",
    None,
    True,
    [1],
    {"a": 1},
    {"a": [1]},
    torch.tensor([1]),
    torch.tensor([1.0]),
    torch.tensor([[1]]),
    torch.tensor([1.0], dtype=torch.bfloat16),
    np.array([1.5]),
    Settings(1, ()),
    Settings(1, ("a",)),
    {"a", "b"},
    ["a", "b"],
]


def test_what_differs_has_another_fingerprint():
    assert len({fingerprint(content) for content in DIFFERENT}) == len(DIFFERENT)
    assert fingerprint({"a": 1, "b": torch.ones(2)}) == fingerprint({"b": torch.ones(2), "a": 1})
    assert fingerprint(torch.ones(2, 3).T) == fingerprint(torch.ones(3, 2))
    assert fingerprint([torch.zeros(2)]) == fingerprint((torch.zeros(2),))


def test_models_are_told_by_their_weights():
    one, two = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert fingerprint(one) == fingerprint(two)
    before = fingerprint(two)
    two.train()
    two.register_forward_hook(lambda *_: None)
    assert fingerprint(two) == before, "hooks and modes are no content"
    two.running_mean += 1
    assert fingerprint(two) != before
    with pytest.raises(TypeError, match=r"weight has no content: it is on the meta device"):
        fingerprint(nn.Linear(3, 3).to("meta"))
    with pytest.raises(TypeError, match="got a function; expected content that can be hashed: pass its name as text"):
        fingerprint({"loss": lambda: None})


@pytest.mark.full  # a process of its own
def test_the_same_in_another_process():
    code = ("import torch; from headtools._engine.store import fingerprint; "
            "print(fingerprint({'x': torch.arange(5.), 'words': ['the', 'the', 'dog'], 'n': {1, 2, 'a'}}))")  # fmt:skip
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    here = fingerprint({"n": {"a", 2, 1}, "words": ["the", "".join(["t", "he"]), "dog"], "x": torch.arange(5.0)})
    assert done.stdout.strip() == here


def test_the_summary_of_a_model():
    model = nn.BatchNorm1d(2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([1.5, -2]))
    assert summary(model)[0] == ("weight", (2,), [1.5, -2.0])
    assert len(summary(model)) == 5
    assert summary(nn.Linear(3, 2, bias=False).to("meta")) == [("weight", (2, 3), [])]
