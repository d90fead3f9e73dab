"""Writers that are refused, and writers that meet: a folder that may not be written, two processes at one result."""

import os
import re
import shutil

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads import files as tensor_files
from headtools.heads.files import read_json, read_whole, write_whole
from headtools.heads.partial import Partial
from headtools.lesson import answered, page
from headtools.organism import checkpoint as training
from headtools.organism import publish, snapshots, sweep, worth
from headtools.sparse import checkpoint as gating

pytest.importorskip("resource", reason="needs fork and limits")

from .faults import learner, over, together, told, without_power


class Written:
    """Stands for a model, and without a text for its tokenizer: saves files that hold one text."""

    def __init__(self, text):
        self.text, self.generation_config = text, {}

    def save_pretrained(self, folder):
        for name in publish.FILES if self.text else ():
            (folder / name).write_text(self.text)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(publish, "make_tokenizer", lambda: Written(""))


def tiny():
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tf.BertForMaskedLM(tf.BertConfig(**shape, **quiet, vocab_size=9)).eval()


MODEL, LINEAR = tiny(), nn.Linear(2, 2)
ADAM = torch.optim.AdamW(LINEAR.parameters())
SCORES = ht.HeadScores({("encoder", 0): torch.ones(3)})


def shipped(folder):
    source = folder.parent / "source"
    snapshots.keep(LINEAR, 0, source)
    return lambda: snapshots.ship(source, folder, kept=[0])


# Each writer of the package: what to call, given the folder it writes to.
WRITERS = {
    "scores": lambda folder: lambda: ht.save_scores(SCORES, folder / "a.safetensors"),
    "batches": lambda folder: lambda: Partial(folder, {}).save(0, {"x": torch.ones(2)}),
    "gates": lambda folder: lambda: gating.save(folder, dict(LINEAR.named_parameters()), ADAM, {}, {}, 1),
    "training": lambda folder: lambda: training.save(folder, LINEAR, ADAM, {"step": 1}),
    "snapshot": lambda folder: lambda: snapshots.keep(LINEAR, 0, folder),
    "snapshots": lambda folder: shipped(folder / "snapshots"),
    "numbers": lambda folder: lambda: publish.write({"x": 1}, folder / "a.json"),
    "more numbers": lambda folder: lambda: publish.changed(folder / "a.json", lambda told: {"x": 1}),
    "runs": lambda folder: lambda: sweep.dump({"x": 1}, folder / "a.json"),
    "page": lambda folder: lambda: page.write("x", folder / "a.html"),
    "answers": lambda folder: lambda: answered.remember(f"01.{len(state(folder))}", "tried", folder / "my.json"),
    "pruned model": lambda folder: lambda: ht.save(MODEL, folder / "smaller"),
    "shipped model": lambda folder: lambda: publish.publish(Written("new"), folder / "model"),
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
        for name in sorted(WRITERS.keys() - {"page", "answers", "snapshots"}):  # these want their folder to be there
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
    assert list(tmp_path.iterdir()) == [path]


def test_rows_of_one_table(tmp_path):
    """Commands that add their rows to one file: none loses what another has measured."""
    path = tmp_path / "a.json"

    def work(name):
        def add(told, number):
            return {"rows": [*told.get("rows", []), [name, number]]}

        return lambda: [publish.changed(path, lambda told, number=number: add(told, number)) for number in range(25)]

    assert at_once(*map(work, "abc")) == [0, 0, 0]
    rows = read_json(path)["rows"]
    assert sorted(rows) == [[name, number] for name in "abc" for number in range(25)]
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_pruned_model(tmp_path):
    """One of them makes the folder, and the others are told that it is there."""
    ht.save(MODEL, tmp_path / "warm")
    assert at_once(*[lambda: ht.save(MODEL, tmp_path / "one")] * 3) == [0, 3, 3]
    model, _ = ht.load(tmp_path / "one")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), MODEL.parameters(), strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"warm", "one"}


def text_of(folder):
    there = publish.standing(folder)
    for name, wanted in publish.listed(there).items():
        publish.verify(there, name, wanted)
    return {(there / name).read_text() for name in ("config.json", "model.safetensors")}


def test_the_same_shipped_model(tmp_path):
    """Publishers take turns; who reads what stands sees all old files or all new ones."""
    folder = tmp_path / "model"
    publish.publish(Written("first"), folder)
    seen = set()

    def look():
        before = publish.standing(folder), (publish.standing(folder) / publish.CHECKSUMS).read_bytes()
        try:
            texts = text_of(folder)
        except (OSError, ValueError):
            texts = None
        if (publish.standing(folder), (publish.standing(folder) / publish.CHECKSUMS).read_bytes()) == before:
            assert texts is None or len(texts) == 1
            seen.update(texts or ())

    def watch():
        try:
            look()
        except FileNotFoundError:  # gone between two looks
            return

    def work(text):
        return lambda: [publish.publish(Written(text), folder) for _ in range(15)]

    assert at_once(work("one"), work("two"), meanwhile=watch) == [0, 0]
    assert seen <= {"first", "one", "two"}
    assert len(text_of(folder)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    """The files of one model and never some of each: what was read of the old one is read again."""
    from headtools.organism import load

    other = tiny()
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight.add_(1)
    for name, model in (("old", MODEL), ("new", other)):
        ht.save(model, tmp_path / name)
    folder, reads, plain = tmp_path / "old", [], load._read

    def read(at, dtype):
        found = plain(at, dtype)
        if not reads:
            with publish.exchanged(folder) as part:
                for path in (tmp_path / "new").iterdir():
                    if path.name != publish.CHECKSUMS:
                        shutil.copy(path, part)
        reads.append(at)
        return found

    monkeypatch.setattr(load, "_read", read)
    model, _ = ht.load(folder)
    assert len(reads) == 2
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


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


def test_the_same_runs_of_a_sweep(tmp_path, monkeypatch):
    run = {"over": "encoder", "penalty": 0.1, "seed": 0}
    monkeypatch.setattr(sweep, "one", lambda *_, sentences, steps, **given: given | {"bleu": [1.0] * 500})
    monkeypatch.setattr(sweep.ht, "load", lambda: (None, None))
    row = sweep.make(run, tmp_path / "alone", 1, 1)
    assert at_once(*[lambda: sweep.make(run, tmp_path / "both", 1, 1)] * 2) == [0, 0]
    assert sweep.make(run, tmp_path / "both", 1, 1) == row
    (file,) = (tmp_path / "both").iterdir()
    (tmp_path / "both" / "encoder-0.2-0.json").write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"encoder-0.2-0.json holds another run than its name says: delete it"):
        sweep.make(run | {"penalty": 0.2}, tmp_path / "both", 1, 1)


def test_the_same_translations(tmp_path, monkeypatch):
    monkeypatch.setattr(worth.ht, "translate", lambda model, tokenizer, texts: [" ".join(words) for words in texts])
    some = ht.corpus("organism", limit=2)

    def work():
        return worth.written(MODEL, None, some, run=tmp_path)

    assert at_once(work, work) == [0, 0]
    assert work() == [str(sentence) for sentence in some]
    (file,) = tmp_path.iterdir()
    other = worth.digest(MODEL, [("encoder", 0, 1)], [s.words for s in some])[:32]
    (tmp_path / f"{other}.json").write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"json holds other translations than its name says: delete it"):
        worth.written(MODEL, None, some, [("encoder", 0, 1)], tmp_path)
