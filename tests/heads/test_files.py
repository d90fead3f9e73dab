"""Files of tensors: what comes back, which files are refused and in which words, and what is left on the disk."""

import errno
import json
import os
import time

import pytest
import torch
from safetensors.torch import save

from headtools.heads import whole
from headtools.heads.digest import digest
from headtools.heads.files import read_told, read_whole, write_whole
from headtools.heads.whole import written, written_bytes, written_folder

TENSORS = {"x": torch.arange(6.0).view(2, 3)}
TOLD = {"n": 1, "names": ["é", "\ud800"]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "some.safetensors"


def header(content):
    """A file that begins as safetensors do, with any text for a header."""
    return len(content).to_bytes(8, "little") + content


def stated(told, tensors=None):
    """A sound file that tells this, with the digest that fits."""
    return save(tensors or {}, {"told": told, "digest": digest(told, tensors or {})})


def test_whole_files_of_anything(path):
    tensors = {"rows": torch.ones(2, 3, dtype=torch.bfloat16), "empty": torch.zeros(0, 4)}
    told = {"done": [1, 2], "text": "\ud800"}
    assert write_whole(path, tensors, told) == path
    back, said = read_whole(str(path))
    assert said == told
    assert back["rows"].dtype == torch.bfloat16
    assert torch.equal(back["rows"], tensors["rows"])
    assert back["empty"].shape == (0, 4)
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_whole(path, tensors, {"rows": torch.ones(2)})
    assert read_whole(path)[1] == told


@pytest.mark.parametrize("tensors", [{}, TENSORS, {"a": torch.zeros(3), "b": torch.zeros(2, 5)}])
def test_what_is_told_needs_no_tensors(path, tensors):
    write_whole(path, tensors, TOLD)
    assert read_told(str(path)) == read_whole(path)[1] == TOLD


def test_views_shared_and_trained_tensors_are_kept_by_value(path):
    both = torch.arange(8.0, requires_grad=True)
    write_whole(path, {"every other": both[::2], "turned": both.view(2, 4).T, "again": both}, {})
    back, _ = read_whole(path)
    assert back["every other"].tolist() == [0, 2, 4, 6]
    assert back["turned"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert not back["again"].requires_grad
    assert both.requires_grad


@pytest.mark.parametrize("name", ["scores.pt", "scores", "scores.safetensors.zip"])
def test_other_names_are_refused_with_one_that_is_right(tmp_path, name):
    stem = name.rpartition(".")[0] or name
    with pytest.raises(ValueError, match=rf"must end in \.safetensors, got '{name}': write path='{stem}\.safetensors'"):
        write_whole(tmp_path / name, {}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read", [read_told, read_whole])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated or no safetensors file"),
        (b"no file of tensors, but text", "truncated or no safetensors file"),
        (b"\xff" * 64, "truncated or no safetensors file"),  # a header of 2^64 bytes
        (header(b"[1]"), "truncated or no safetensors file"),
        (header(b"7"), "truncated or no safetensors file"),
        (stated(json.dumps(TOLD), TENSORS)[:-1], "truncated or no safetensors file"),
        (stated(json.dumps(TOLD), TENSORS)[:-20], "truncated or no safetensors file"),
        (stated(json.dumps(TOLD), TENSORS) + b"0", "truncated or no safetensors file"),
        (save(TENSORS), "not written by headtools"),
        (save(TENSORS, {"told": "{}"}), "not written by headtools"),
        (save(TENSORS, {"digest": "0"}), "not written by headtools"),
        (stated("neither {"), "holds no JSON beside its tensors"),
        (stated("[" * 10**5), "holds no JSON beside its tensors"),  # too deep for any reader
        (stated("[1, 2]"), "tells of list, a dict is needed"),
        (stated("null"), "tells of NoneType, a dict is needed"),
    ],
)
def test_files_that_are_not_ours_are_refused(path, read, content, words):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as found:
        read(path)
    assert str(path) in str(found.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("read", [read_told, read_whole])
def test_where_no_file_is(path, read, tmp_path):
    for nothing in (path, tmp_path):  # a folder is none either
        with pytest.raises(FileNotFoundError, match=r"there is no file .*write one with save_scores"):
            read(nothing)


def test_a_changed_tensor_is_seen_by_who_reads_it(path):
    write_whole(path, TENSORS, TOLD)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert read_told(path) == TOLD
    with pytest.raises(ValueError, match="was changed after it was written: its digest does not fit"):
        read_whole(path)


def test_written_makes_the_folder_and_returns_the_path(path):
    assert written_bytes(str(path), b"one") == path
    assert written_bytes(path, b"two") == path
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("before", "kept"), [(None, "there is nothing of it"), (b"old", "what was there is as it was")]
)
def test_what_stops_a_writing_is_told(path, monkeypatch, before, kept):
    if before is not None:
        written_bytes(path, before)

    def full(_number):
        raise OSError(errno.ENOSPC, "no matter what")

    monkeypatch.setattr(whole.os, "fsync", full)
    with pytest.raises(OSError, match=f"; the file was not written, {kept}") as found:
        written_bytes(path, b"new")
    assert found.value.errno == errno.ENOSPC
    assert found.value.strerror.startswith(os.strerror(errno.ENOSPC))
    assert found.value.filename == str(path)
    assert [p.read_bytes() for p in path.parent.iterdir()] == ([] if before is None else [before])


@pytest.mark.parametrize("error", [ValueError("mine"), OSError("mine, without a number"), KeyboardInterrupt("mine")])
def test_other_errors_pass_as_they_are(path, error):
    written_bytes(path, b"old")
    with pytest.raises(type(error), match="mine") as found, written(path) as part:  # noqa: PT012
        part.write_bytes(b"half")
        raise error
    assert found.value is error
    assert [p.read_bytes() for p in path.parent.iterdir()] == [b"old"]


def test_what_the_dead_left_is_cleared_after_an_hour(tmp_path):
    path = tmp_path / "a[1].txt"  # brackets have a meaning in patterns
    ages = {"a[1].txt.old.part": 3700, "a[1].txt.older.part": 9000, "a[1].txt.new.part": 3500, "a1.txt.old.part": 9000,
            "a[1].txt": 9000, "b.txt.old.part": 9000}  # fmt: skip
    for name, age in ages.items():
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    written_bytes(path, b"y")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a1.txt.old.part", "a[1].txt", "a[1].txt.new.part",
                                                           "b.txt.old.part"]  # fmt: skip


def test_two_writers_do_not_meet(path):
    with written(path) as one, written(path) as other:
        assert one != other
        assert one.parent == other.parent == path.parent
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one", "who ends last"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("when", ["before it is looked for", "after that"])
def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch, when):
    """Not even an empty one, which the system would replace without a word."""
    path, move = tmp_path / "new", whole._move

    def late(part, path):
        path.mkdir()
        (path / "b.txt").write_text("theirs")  # a folder that is not empty cannot be replaced
        move(part, path)

    def write():
        with written_folder(path) as part:
            (part / "a.txt").write_text("ours")
            if when == "after that":
                monkeypatch.setattr(whole, "_move", late)
            else:
                path.mkdir()

    with pytest.raises(FileExistsError, match="is there already: name a new folder"):
        write()
    assert not (path / "a.txt").exists()
    assert [left.name for left in tmp_path.iterdir()] == ["new"]
