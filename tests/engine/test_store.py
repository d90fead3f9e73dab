"""Files are written whole or not at all, and read only when they are what was written."""

import os
import stat

import pytest
import torch
from torch import nn

from headtools._engine.store import (
    atomic_folder,
    atomic_write,
    fingerprint,
    read_json,
    read_tensors,
    write_bytes,
    write_tensors,
)


def test_tensors_and_metadata_come_back(tmp_path):
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


def stop_in_the_middle(write, path):
    with write(path) as temporary:
        (temporary / "a" if temporary.is_dir() else temporary).write_bytes(b"half")
        raise RuntimeError("in the middle")


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_write_that_fails_changes_nothing(tmp_path, old):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)
    for write, name in ((atomic_write, "file"), (atomic_folder, "folder")):
        with pytest.raises(RuntimeError, match="in the middle"):
            stop_in_the_middle(write, tmp_path / name)
        assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == ([("file", old)] if old else [])


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = write_bytes(tmp_path / "file", b"old")
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"ne")
        assert path.read_bytes() == b"old"
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"


def test_links_and_what_is_in_the_way(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_bytes(tmp_path / "folder", b"x")
    with pytest.raises(FileExistsError, match="already exists: choose a new name"), atomic_folder(tmp_path / "folder"):
        pass
    with pytest.raises(ValueError, match=r"expected .safetensors: write path='a.safetensors'"):
        write_tensors(tmp_path / "a.bin", {})


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nobody can forbid root to write")
def test_a_read_only_file_stays(tmp_path):
    path = write_bytes(tmp_path / "file", b"old")
    path.chmod(stat.S_IREAD)
    with pytest.raises(PermissionError, match="is read-only: make it writable"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"


def test_damage_is_noticed_and_named(tmp_path):
    path = write_tensors(tmp_path / "some.safetensors", {"x": torch.arange(9.0)}, {"a": 1})
    data = path.read_bytes()
    damaged = [data[:n] for n in (0, 5, 40, len(data) - 1)]  # cut off
    damaged += [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(8, len(data), 7)]  # one bit
    damaged += [data + b"\x00", b"null", b"[" * 10_000]
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"some.safetensors is damaged, or was not written by headtools"):
            read_tensors(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        read_tensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '{"b": 1}', '{"a":' * 100_000])
def test_json_of_another_kind(tmp_path, text):
    path = write_bytes(tmp_path / "a.json", text.encode())
    with pytest.raises(ValueError, match=r"a.json (is truncated or not JSON|holds something else).*[:;] measure again"):
        read_json(path, "a", remedy="measure again")
    assert read_json(write_bytes(path, b'{"a": 2}'), "a") == {"a": 2}


def test_fingerprints_tell_content_from_content():
    layer = nn.Linear(2, 2)
    same = nn.Linear(2, 2)
    same.load_state_dict(layer.state_dict())
    assert fingerprint([layer, {"a": 1}]) == fingerprint((same, {"a": 1}))
    contents = [layer, nn.Linear(2, 2), torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).int(), "a", 1, [1], {"a": 1}]
    assert len({fingerprint(content) for content in contents}) == len(contents)
    for content in (print, iter([1])):
        with pytest.raises(TypeError, match="got a"):
            fingerprint(content)
