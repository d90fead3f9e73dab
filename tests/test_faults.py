"""Killed at any line, in the middle of a write, on a full disk:

afterwards there is the old result or the new one, whole, and what goes on from there ends where it would have.
"""

import os
import random
import re

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads import files as tensor_files
from headtools.heads import partial, whole
from headtools.heads.files import read_json
from headtools.heads.whole import written_bytes
from headtools.importance import stored
from headtools.importance.stored import read_whole, write_whole
from headtools.lesson import page
from headtools.organism import smaller
from headtools.sparse import checkpoint as gating
from recipes import _results
from recipes import _training_state as training

pytest.importorskip("resource", reason="needs fork and limits")

from .faults import forked, full_disk, killed_after, killer, learner, lines_run, told


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """What is asked of the disk outlives a loss of power, not a kill; waiting for it would be most of the time."""
    monkeypatch.setattr(os, "fsync", lambda number: None)


OLD, NEW = {"x": torch.zeros(300)}, {"x": torch.ones(500)}


def scores(size):
    return ht.HeadScores({("encoder", 0): torch.arange(float(size))}, f"of {size}")


# what is written: how, how it is read, and the file
SMALL = {
    "scores": (lambda n, path: ht.save_scores(scores(n), path),
               lambda path: len(ht.load_scores(path)), "a.safetensors"),
    "tensors": (lambda n, path: write_whole(path, {"x": torch.zeros(n)}, {"n": n}),
                lambda path: read_whole(path)[1]["n"], "a.safetensors"),
    "page": (lambda n, path: page.write("x" * n, path), lambda path: len(path.read_text()), "a.html"),
    "numbers": (lambda n, path: _results.write({"x": [0] * n}, path),
                lambda path: len(read_json(path)["x"]), "a.json"),
}  # fmt: skip
FILES = [module.__file__ for module in (whole, stored, tensor_files, partial, page, _results)]


@pytest.mark.parametrize("name", SMALL)
def test_killed_at_any_line_and_any_byte(name, tmp_path):
    write, read, file = SMALL[name]
    path = tmp_path / file
    write(300, path)
    size = path.stat().st_size
    ends = set()
    number = lines_run(lambda: write(500, path), FILES)
    faults = [killer(FILES, line) for line in range(number)]
    faults += [full_disk(1 + part * size // 50, kill) for part in range(50) for kill in (True, False)]
    for fault in faults:
        write(300, path)
        ended = forked(lambda: write(500, path), fault)
        assert ended in ("killed", "OSError")
        ends.add((ended, read(path)))
    assert ("killed", 300) in ends
    assert ("OSError", 300) in ends
    assert {found for _, found in ends} <= {300, 500}
    assert ("OSError", 500) not in ends
    assert [p for p in tmp_path.iterdir() if p != path and not p.name.endswith(".part")] == []
    for part in tmp_path.glob("*.part"):
        os.utime(part, (0, 0))
    write(300, path)
    assert list(tmp_path.iterdir()) == [path], "what the dead left is cleared away after an hour"


def test_a_first_file_is_whole_or_not_there(tmp_path):
    number = lines_run(lambda: write_whole(tmp_path / "z.safetensors", NEW, {}), FILES)
    for line in range(number):
        folder = tmp_path / str(line)
        forked(lambda folder=folder: write_whole(folder / "a.safetensors", NEW, {}), killer(FILES, line))
        path = folder / "a.safetensors"
        assert not path.exists() or torch.equal(read_whole(path)[0]["x"], NEW["x"])


@pytest.mark.parametrize("name", SMALL)
def test_a_full_disk_is_told_and_leaves_nothing(name, tmp_path, monkeypatch):
    write, read, file = SMALL[name]
    path = tmp_path / file
    for before in (None, 300):
        if before:
            write(before, path)
        with monkeypatch.context() as patch:
            patch.setattr(whole.os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
            told = "what was there is as it was" if before else "there is nothing of it"
            with pytest.raises(OSError, match=f"No space left on device; the file was not written, {told}") as found:
                write(500, path)
        assert found.value.errno == 28
        assert found.value.filename == str(path)
        assert [p.name for p in tmp_path.iterdir()] == ([path.name] if before else [])
        assert before is None or read(path) == before


def test_a_file_where_its_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "a.safetensors", tmp_path / "file" / "b" / "a.safetensors"):
        with pytest.raises(OSError, match="there is nothing of it: a file stands where its folder should be; name ano"):
            write_whole(path, NEW, {})
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(OSError, match="a folder has that name; name another"):
        write_whole(tmp_path / "a.safetensors", NEW, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "file"]


def test_a_read_only_file_is_not_replaced(tmp_path):
    path = write_whole(tmp_path / "a.safetensors", OLD, {})
    path.chmod(0o444)
    with pytest.raises(PermissionError, match=r"read-only; .* what was there is as it was: make it writ"):
        write_whole(path, NEW, {})
    assert torch.equal(read_whole(path)[0]["x"], OLD["x"])
    path.chmod(0o644)
    link = tmp_path / "link.safetensors"
    link.symlink_to(path)
    write_whole(link, NEW, {})
    assert link.is_symlink()
    assert torch.equal(read_whole(path)[0]["x"], NEW["x"]), "of a link the file that it leads to is replaced"
    assert len(list(tmp_path.iterdir())) == 2


# --- training: the state of an optimizer ----------------------------------------------------------------------------


def saved(run, steps):
    for step in steps:
        training.save(run, *learner(step), {"step": step})


def step_of(run):
    """The step whose weights, moments and counters are all there; 0 where nothing was ever saved."""
    module, optimizer = learner(99)
    state = training.restore(run, module, optimizer)
    if state is None:
        return 0
    expected, moments = learner(state["step"])
    assert torch.equal(module.weight, expected.weight)
    for one, other in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(optimizer.state[one]["exp_avg"], moments.state[other]["exp_avg"])
    return state["step"]


def test_a_training_killed_twice_keeps_a_state(tmp_path):
    """Killed while it saves step 2, started again, killed while it saves step 3: step 1 or later is never lost."""
    files = [training.__file__, whole.__file__, tensor_files.__file__]
    number = lines_run(lambda: saved(tmp_path / "count", [1]), files)
    for first in range(0, number, 3):
        for second in random.Random(first).sample(range(2 * number), 2):
            run = tmp_path / f"{first}-{second}"
            saved(run, [1])
            assert forked(lambda run=run: saved(run, [2]), killer(files, first)) == "killed"
            then = step_of(run)
            assert then in (1, 2)
            assert forked(lambda run=run: saved(run, [3, 4]), killer(files, second)) == "killed"
            assert step_of(run) >= then
    saved(run, [5])
    assert step_of(run) == 5


def test_a_damaged_state_is_told(tmp_path):
    saved(tmp_path, [1])
    path = tmp_path / training.FILE
    data = path.read_bytes()
    for part in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:part])
        module, optimizer = learner(99)
        before = module.weight.clone()
        with pytest.raises(ValueError, match=r"is damaged .*: delete it, and the training starts anew"):
            training.restore(tmp_path, module, optimizer)
        assert torch.equal(module.weight, before)
        assert len(optimizer.state[module.weight]["exp_avg"]) == 2
    path.write_bytes(data)
    assert step_of(tmp_path) == 1
    other = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="holds another model's weights"):
        training.restore(tmp_path, other, torch.optim.AdamW(other.parameters()))


def test_a_training_on_a_full_disk(tmp_path):
    saved(tmp_path, [1])
    for size in range(1, (tmp_path / training.FILE).stat().st_size, 35):
        assert forked(lambda: saved(tmp_path, [2]), full_disk(size, kill=False)) == "OSError"
        assert step_of(tmp_path) == 1
        assert [path.name for path in tmp_path.iterdir()] == [training.FILE]


# --- the shipped model: files that belong together ------------------------------------------------------------------


# --- gates, sweeps and scores: whole runs ---------------------------------------------------------------------------


def tiny():
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tf.BertForMaskedLM(tf.BertConfig(**shape, **quiet, vocab_size=9)).eval()


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
BATCHES = [{"input_ids": (IDS + n) % 9, "labels": (IDS + n) % 9} for n in range(3)]


def gates(folder):
    return ht.fit_gates(tiny(), BATCHES, penalty=0.1, steps=6, run=folder, save_every=2, quiet=True)


def test_learning_gates_goes_on_wherever_it_was_killed(tmp_path):
    straight = gates(None)
    files = [gating.__file__, whole.__file__]
    number = lines_run(lambda: gates(tmp_path / "count"), files)
    for line in range(0, number, 29):
        folder = tmp_path / str(line)
        assert forked(lambda folder=folder: gates(folder), killer(files, line)) == "killed"
        again = gates(folder)
        assert torch.equal(again.gates.log_alpha, straight.gates.log_alpha)
    path = tmp_path / "0" / gating.FILE
    data = path.read_bytes()
    for part in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:part])
        with pytest.raises(ValueError, match=r"is damaged .*: delete it, and the run starts anew"):
            gates(path.parent)
    draw = random.Random(0)
    for number in range(3):
        folder = tmp_path / f"real {number}"
        killed_after(lambda folder=folder: gates(folder), draw.random() * 0.4)
        assert torch.equal(gates(folder).gates.log_alpha, straight.gates.log_alpha)


def losses(folder):
    return ht.ablation_losses(tiny(), BATCHES, run=folder, quiet=True)


def test_scoring_goes_on_wherever_it_was_killed(tmp_path):
    straight = losses(None)
    files = [partial.__file__, whole.__file__, tensor_files.__file__]
    number = lines_run(lambda: losses(tmp_path / "count"), files)
    for line in range(0, number, 5):
        folder = tmp_path / str(line)
        assert forked(lambda folder=folder: losses(folder), killer(files, line)) == "killed"
        again = losses(folder)
        assert all(torch.equal(again[key], rise) for key, rise in straight.items())
    path = tmp_path / "0" / "batch-000001.safetensors"
    data = path.read_bytes()
    for part in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:part])
        with pytest.raises(ValueError, match="delete it, and its batch is run again"):
            losses(path.parent)


def test_a_pruned_model_is_saved_whole_or_not_at_all(tmp_path):
    model, files = tiny(), [smaller.__file__, whole.__file__]
    ht.prune(model, {("encoder", 0): [1]})
    number = lines_run(lambda: ht.save(model, tmp_path / "count"), files)
    for line in range(0, number, 3):
        folder = tmp_path / f"m{line}"
        forked(lambda folder=folder: ht.save(model, folder), killer(files, line))
        if folder.exists():
            assert ht.sites(ht.load(folder)[0])["encoder", 0].heads == 1
        elif line % 9 == 0:
            ht.save(model, folder)
    for size in range(1, 9000, 900):
        folder = tmp_path / f"f{size}"
        said = told(lambda folder=folder: ht.save(model, folder), full_disk(size, kill=False))
        assert re.match(r"OSError: .*File too large; the file was not written, there is nothing of it: make room", said)
        assert not list(tmp_path.glob(f"f{size}*"))


def test_written_keeps_what_is_there_when_the_block_fails(tmp_path):
    written_bytes(tmp_path / "a", b"old")
    with pytest.raises(TypeError), whole.written(tmp_path / "a") as part:
        part.write_bytes(b"new" + part)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
