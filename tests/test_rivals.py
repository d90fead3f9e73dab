"""Writers that are refused, and writers that meet: a folder that may not be written, two processes at one result."""

import os
import re

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads import files as tensor_files
from headtools.heads.files import read_json, read_whole, write_whole
from headtools.heads.partial import Partial
from headtools.lesson import answered, page
from headtools.sparse import checkpoint as gating
from recipes import _results
from recipes import _training_state as training

pytest.importorskip("resource", reason="needs fork and limits")

from .faults import learner, over, together, told, without_power


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: None)


def tiny():
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tf.BertForMaskedLM(tf.BertConfig(**shape, **quiet, vocab_size=9)).eval()


MODEL, LINEAR = tiny(), nn.Linear(2, 2)
ADAM = torch.optim.AdamW(LINEAR.parameters())
SCORES = ht.HeadScores({("encoder", 0): torch.ones(3)})


# Each writer of the package: what to call, given the folder it writes to.
WRITERS = {
    "scores": lambda folder: lambda: ht.save_scores(SCORES, folder / "a.safetensors"),
    "batches": lambda folder: lambda: Partial(folder, {}).save(0, {"x": torch.ones(2)}),
    "gates": lambda folder: lambda: gating.save(folder, dict(LINEAR.named_parameters()), ADAM, {}, {}, 1),
    "training": lambda folder: lambda: training.save(folder, LINEAR, ADAM, {"step": 1}),
    "numbers": lambda folder: lambda: _results.write({"x": 1}, folder / "a.json"),
    "page": lambda folder: lambda: page.write("x", folder / "a.html"),
    "answers": lambda folder: lambda: answered.remember(f"01.{len(state(folder))}", "tried", folder / "my.json"),
    "pruned model": lambda folder: lambda: ht.save(MODEL, folder / "smaller"),
}


def state(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_may_not_be_written(name, tmp_path):
    """Told with what to do, and nothing is left; first where there is nothing, then where there is a result."""
    folder = tmp_path / "locked"
    folder.mkdir()
    write = WRITERS[name](folder)
    there = [False] if name == "pruned model" else [False, True]
    for before in there:
        if before:
            write()
        kept = state(folder)
        folder.chmod(0o500)
        try:
            said = told(write, without_power)
        finally:
            folder.chmod(0o700)
        was = "what was there is as it was" if before else "there is nothing of it"
        assert re.match(rf"PermissionError: .*Permission denied; .*{was}: name a folder that you may write", said), said
        assert str(folder) in said
        assert state(folder) == kept
    write()


def test_a_folder_inside_one_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    try:
        for name in sorted(WRITERS.keys() - {"page", "answers"}):  # these want their folder to be there
            said = told(WRITERS[name](tmp_path / "new"), without_power)
            assert re.match("PermissionError: .*name a folder that you may write", said), (name, said)
    finally:
        tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


# --- two at once ------------------------------------------------------------------------------------------------------


def at_once(*works, meanwhile=lambda: None):
    """Run ``works`` at once, look ``meanwhile`` again and again, and return how they ended."""
    ends, children = {}, together(*works)
    while not over(children, ends):
        meanwhile()
    return sorted(ends.values())


def test_the_same_file(tmp_path):
    """Two processes write the same result again and again; who reads meanwhile never sees half of one."""
    path, seen = tmp_path / "a.safetensors", set()
    sizes = (300, 500)
    write_whole(path, {"x": torch.zeros(300)}, {})

    def work(size):
        return lambda: [write_whole(path, {"x": torch.zeros(size)}, {}) for _ in range(60)]

    def look():
        seen.add(len(read_whole(path)[0]["x"]))
        assert tensor_files.read_told(path) == {}

    assert at_once(*map(work, sizes), meanwhile=look) == [0, 0]
    assert seen <= set(sizes)
    assert {file.name for file in tmp_path.iterdir()} <= {path.name, f".{path.name}.lock"}


def test_rows_of_one_table(tmp_path):
    """Commands that add their rows to one file: none loses what another has measured."""
    path = tmp_path / "a.json"

    def work(name):
        def add(told, number):
            return {"rows": [*told.get("rows", []), [name, number]]}

        return lambda: [_results.update(path, lambda told, number=number: add(told, number)) for number in range(25)]

    assert at_once(*map(work, "abc")) == [0, 0, 0]
    rows = read_json(path)["rows"]
    assert sorted(rows) == [[name, number] for name in "abc" for number in range(25)]
    assert {file.name for file in tmp_path.iterdir()} <= {path.name, f".{path.name}.lock"}


def test_the_same_pruned_model(tmp_path):
    """One of them makes the folder, and the others are told that it is there."""
    ht.save(MODEL, tmp_path / "warm")
    assert at_once(*[lambda: ht.save(MODEL, tmp_path / "one")] * 3) == [0, 3, 3]
    model, _ = ht.load(tmp_path / "one")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), MODEL.parameters(), strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"warm", "one"}


def test_the_same_training(tmp_path):
    def work(seed):
        module, optimizer = learner(seed)
        return lambda: [training.save(tmp_path, module, optimizer, {"step": seed}) for _ in range(40)]

    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    seen = set()

    def look():
        state = training.restore(tmp_path, module, optimizer)
        if state:
            seen.add((state["step"], module.weight.sum().item()))

    assert at_once(work(1), work(2), meanwhile=look) == [0, 0]
    look()
    assert len(seen) == len({step for step, _ in seen}) <= 2
    assert [path.name for path in tmp_path.iterdir()] == [training.FILE]


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
BATCHES = [{"input_ids": (IDS + n) % 9, "labels": (IDS + n) % 9} for n in range(3)]


def test_the_same_scores_and_the_same_gates(tmp_path):
    """Two runs in one folder, without a launcher: each ends with the numbers of one alone, and so does a third."""

    def scored(run):
        return ht.ablation_losses(MODEL, BATCHES, run=run, quiet=True)

    def fitted(run):
        return ht.fit_gates(MODEL, BATCHES, penalty=0.1, steps=4, run=run, save_every=1, quiet=True).gates.log_alpha

    plain, straight = scored(None), fitted(None)

    def work():
        mine = scored(tmp_path / "scores")
        assert all(torch.equal(mine[key], rise) for key, rise in plain.items())
        assert torch.equal(fitted(tmp_path / "gates"), straight)

    assert at_once(work, work) == [0, 0]
    work()
    assert len(list((tmp_path / "scores").iterdir())) == len(BATCHES)
    assert [path.name for path in (tmp_path / "gates").iterdir()] == [gating.FILE]


