"""Killed at any line, in the middle of a write, on a full disk, in a folder that may not be written, by a rival:

afterwards there is the old result or the new one, whole, and what goes on from there ends where it would have.
"""

import os
import random

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads import files as tensor_files
from headtools.heads import partial, whole
from headtools.heads.whole import written_bytes
from headtools.importance import stored
from headtools.importance.stored import read_whole, write_whole
from headtools.lesson import page
from headtools.organism import checkpoint as training
from headtools.organism import publish, snapshots, sweep
from headtools.sparse import checkpoint as gating

pytest.importorskip("resource", reason="needs fork and limits")

from .faults import forked, full_disk, killed_after, killer, lines_run

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
    "numbers": (lambda n, path: publish.write({"x": [0] * n}, path),
                lambda path: len(publish.json.loads(path.read_text())["x"]), "a.json"),
    "runs": (lambda n, path: sweep.dump({"x": [0] * n}, path),
             lambda path: len(publish.json.loads(path.read_text())["x"]), "a.json"),
}  # fmt: skip
FILES = [module.__file__ for module in (whole, stored, tensor_files, partial, page, publish, sweep)]


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


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="there is nothing of it"):
        write_whole(tmp_path / "file" / "a.safetensors", NEW, {})
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    folder = tmp_path / "locked"
    folder.mkdir()
    write_whole(folder / "a.safetensors", OLD, {})
    folder.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="what was there is as it was"):
            write_whole(folder / "a.safetensors", NEW, {})
    finally:
        folder.chmod(0o700)
    assert torch.equal(read_whole(folder / "a.safetensors")[0]["x"], OLD["x"])


def test_rivals_write_the_same_file(tmp_path):
    """Two processes write the same result again and again; who reads meanwhile never sees half of one."""
    path = tmp_path / "a.safetensors"
    write_whole(path, OLD, {})
    children = []
    for tensors in (OLD, NEW):
        child = os.fork()
        if child == 0:
            try:
                for _ in range(60):
                    write_whole(path, tensors, {})
            finally:
                os._exit(0)
        children.append(child)
    running, seen = set(children), set()
    while running:
        seen.add(len(read_whole(path)[0]["x"]))
        assert tensor_files.read_told(path) == {}
        running -= {child for child in running if os.waitpid(child, os.WNOHANG)[0]}
    assert seen <= {300, 500}
    assert list(tmp_path.iterdir()) == [path]


# --- training: the state of an optimizer ----------------------------------------------------------------------------


def net(seed):
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


def saved(folder, steps):
    for step in steps:
        training.save(folder, *net(step), {"step": step})


def step_of(folder):
    """The step whose weights, moments and counters are all there; 0 where nothing was ever saved."""
    module, optimizer = net(99)
    state = training.restore(folder, module, optimizer)
    if state is None:
        return 0
    expected, moments = net(state["step"])
    assert torch.equal(module.weight, expected.weight)
    for one, other in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(optimizer.state[one]["exp_avg"], moments.state[other]["exp_avg"])
    return state["step"]


def test_a_training_killed_twice_keeps_a_state(tmp_path):
    """Killed while it saves step 2, started again, killed while it saves step 3: step 1 or later is never lost."""
    files = [training.__file__, whole.__file__, training.shutil.__file__]
    number = lines_run(lambda: saved(tmp_path / "count" / "a", [1, 2]), files)
    once = lines_run(lambda: saved(tmp_path / "count2" / "a", [1]), files)
    points = 0
    for first in range(once, number, 9):
        for second in random.Random(first).sample(range(number), 4):
            folder = tmp_path / f"{first}-{second}" / "a"
            saved(folder, [1])
            forked(lambda folder=folder: saved(folder, [2]), killer(files, first - once))
            then = step_of(folder)
            assert then in (1, 2)
            forked(lambda folder=folder: saved(folder, [3, 4]), killer(files, second))
            assert step_of(folder) >= then
            points += 2
    assert points >= 30
    saved(folder, [5])
    assert step_of(folder) == 5
    assert [p.name for p in folder.parent.iterdir()] == ["a"]


def test_killed_between_the_moves_of_a_second_run(tmp_path):
    """A run killed between the two moves leaves only the old folder; the next one must not delete that first."""
    folder = tmp_path / "a"
    saved(folder, [1])
    os.replace(folder, tmp_path / "a.old")
    for line in range(lines_run(lambda: saved(tmp_path / "n" / "a", [2]), [training.__file__])):
        forked(lambda: saved(folder, [2]), killer([training.__file__], line))
        assert step_of(folder) in (1, 2)
        if folder.exists():
            break


def test_a_damaged_state_is_told(tmp_path):
    folder = tmp_path / "a"
    saved(folder, [1])
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        data = (folder / name).read_bytes()
        for part in range(0, len(data) - 1, max(1, len(data) // 50)):  # JSON is whole without its last line feed
            (folder / name).write_bytes(data[:part])
            module, optimizer = net(99)
            before = module.weight.clone()
            with pytest.raises(ValueError, match=r"is damaged .*: delete it, and the training starts anew"):
                training.restore(folder, module, optimizer)
            assert torch.equal(module.weight, before)
            assert len(optimizer.state[module.weight]["exp_avg"]) == 2
        (folder / name).write_bytes(data)
    assert step_of(folder) == 1


def test_a_training_on_a_full_disk(tmp_path):
    folder = tmp_path / "a"
    saved(folder, [1])
    for size in range(1, 700, 35):
        assert forked(lambda: saved(folder, [2]), full_disk(size, kill=False)) in ("OSError", "done")
        assert step_of(folder) in (1, 2)
        assert not (tmp_path / "a.part").exists()


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
    from headtools.organism import smaller

    model = tiny()
    ht.prune(model, {("encoder", 0): [1]})
    number = lines_run(lambda: ht.save(model, tmp_path / "count"), [smaller.__file__])
    for line in range(number):
        folder = tmp_path / f"m{line}"
        forked(lambda folder=folder: ht.save(model, folder), killer([smaller.__file__], line))
        if folder.exists():
            assert ht.sites(ht.load(folder)[0])["encoder", 0].heads == 1
        else:
            ht.save(model, folder)
    for size in range(1, 9000, 900):
        folder = tmp_path / f"f{size}"
        ended = forked(lambda folder=folder: ht.save(model, folder), full_disk(size, kill=False))
        assert ended != "done"
        assert not folder.exists()
        assert not list(tmp_path.glob(f".f{size}.*"))


def test_snapshots_are_whole(tmp_path):
    model = tiny()
    files = [snapshots.__file__, whole.__file__]
    number = lines_run(lambda: snapshots.keep(model, 1, tmp_path / "count"), files)
    for line in range(0, number, 2):
        folder = tmp_path / str(line)
        forked(lambda folder=folder: snapshots.keep(model, 1, folder), killer(files, line))
        path = snapshots.path(1, folder)
        assert not path.exists() or path.read_bytes() == snapshots.path(1, tmp_path / "count").read_bytes()


def test_written_keeps_what_is_there_when_the_block_fails(tmp_path):
    written_bytes(tmp_path / "a", b"old")
    with pytest.raises(TypeError), whole.written(tmp_path / "a") as part:
        part.write_bytes(b"new" + part)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
