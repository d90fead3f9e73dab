"""Files that people keep: killed runs go on, saved models are whole, damage is told by the file's name."""

import random
import re

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools._engine import run, store
from headtools._engine.store import fingerprint
from headtools.course import answered
from headtools.course.claims import ledger_rows
from headtools.organism import _checksums as checksums
from headtools.organism import save as smaller
from headtools.organism import shipped as tables
from headtools.organism import snapshots
from headtools.sparse import _checkpoint as checkpoint
from headtools.sparse import _trainer
from headtools.sparse._trainer import FILE
from recipes import _results

pytest.importorskip("resource", reason="needs fork and limits")

from .faults import forked, full_disk, killed_after, killer, lines_run, told

ASSETS = checksums.ASSETS
REFUSED = (ValueError, OSError)  # of which JSONDecodeError and UnicodeDecodeError tell no file, which is looked at
TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9}


def tiny():
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tf.BertForMaskedLM(tf.BertConfig(**shape, **quiet, vocab_size=9)).eval()


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
BATCHES = [{"input_ids": (IDS + n) % 9, "labels": (IDS + n) % 9} for n in range(3)]


def pruned_model(folder, seed):
    torch.manual_seed(seed)
    model = tf.BertForMaskedLM(tf.BertConfig(**TINY)).eval()
    ht.prune(model, {("encoder", 0): [seed]})
    return ht.save(model, folder / "smaller")


def read_model(folder):
    model, _ = ht.load(folder)
    return fingerprint([model, ht.pruned(model)])


def outcome(read, path, named=None):
    """What is read, or the message; whatever else is raised goes through and fails the test."""
    try:
        return read(path), None
    except REFUSED as error:
        message = str(error)
    assert str(named or path) in message, message
    assert len(message) < 900, "a message is read by people"
    return None, message


def damages(data, draw):
    """A file's bytes after this and that: (what happened, bytes)."""
    for _ in range(12):
        yield "cut off", data[: draw.randrange(len(data))]
    for _ in range(25):
        at = draw.randrange(len(data))
        yield f"bit of byte {at}", data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    for number in (b"0", b"9", b" ", b"\x00", b"\xff"):
        at = draw.randrange(len(data))
        yield f"byte {at} is {number}", data[:at] + number + data[at + 1 :]
    yield from [("empty", b""), ("longer", data + b"\x00"), ("twice", data * 2), ("a line feed more", data + b"\n")]
    half = len(data) // 2
    yield from [("halves swapped", data[half:] + data[:half]), ("zeros", bytes(len(data)))]


def gates(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_trainer, "SAVE_EVERY", 2)
        return ht.fit_gates(tiny(), BATCHES, penalty=0.1, steps=6, checkpoint=folder, progress=False)


@pytest.mark.full
def test_learning_gates_goes_on_wherever_it_was_killed(tmp_path):
    straight = gates(None)
    files = [checkpoint.__file__, store.__file__]
    number = lines_run(lambda: gates(tmp_path / "count"), files)
    for line in range(0, number, 61):
        folder = tmp_path / str(line)
        assert forked(lambda folder=folder: gates(folder), killer(files, line)) == "killed"
        again = gates(folder)
        assert torch.equal(again.gates.log_alpha, straight.gates.log_alpha)
    path = tmp_path / "0" / FILE
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
    return ht.ablation_losses(tiny(), BATCHES, checkpoint=folder, progress=False)


@pytest.mark.full
def test_scoring_goes_on_wherever_it_was_killed(tmp_path):
    straight = losses(None)
    files = [run.__file__, store.__file__]
    number = lines_run(lambda: losses(tmp_path / "count"), files)
    for line in range(0, number, 9):
        folder = tmp_path / str(line)
        assert forked(lambda folder=folder: losses(folder), killer(files, line)) == "killed"
        again = losses(folder)
        assert all(torch.equal(again[key], rise) for key, rise in straight.items())
    path = tmp_path / "0" / "000001.safetensors"
    data = path.read_bytes()
    for part in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:part])
        with pytest.raises(ValueError, match="delete it, and its batch is measured again"):
            losses(path.parent)


@pytest.mark.full
def test_a_pruned_model_is_saved_whole_or_not_at_all(tmp_path):
    model, files = tiny(), [smaller.__file__, store.__file__]
    ht.prune(model, {("encoder", 0): [1]})
    number = lines_run(lambda: ht.save(model, tmp_path / "count"), files)
    for line in range(0, number, 7):
        folder = tmp_path / f"m{line}"
        forked(lambda folder=folder: ht.save(model, folder), killer(files, line))
        if folder.exists():
            assert ht.sites(ht.load(folder)[0])["encoder", 0].heads == 1
        elif line % 21 == 0:
            ht.save(model, folder)
    for size in range(1, 9000, 900):
        folder = tmp_path / f"f{size}"
        message = told(lambda folder=folder: ht.save(model, folder), full_disk(size, kill=False))
        assert re.match(r"OSError: .*File too large; .*not written, and nothing is there: free some space", message)
        assert not list(tmp_path.glob(f"f{size}*"))


ODD = [
    "",
    " ",
    "null",
    "[]",
    "3",
    "true",
    '"x"',
    "{",
    "}",
    '{"exercises": 3}',
    '{"digest": 3}',
    '{"digest": null}',
    "NaN",
    '{"a": NaN}',
    '{"a": 1e999}',
    "9" * 5000,
    "-" + "9" * 400,
    "[" * 100_000,
    '{"a":' * 100_000,
    '\ufeff{"a": 1}',
    '[["encoder", 1e999, 0]]',
    '[["encoder", 0, 9999999999999999999999]]',
    '[["encoder", NaN, 0]]',
    "[[]]",
    "[[0]]",
    '[["encoder", 0, -1]]',
    '[[["encoder"], 0, 0]]',
    "[[null, null, null]]",
    '{"cells": 3}',
    '{"cells": [3]}',
    '{"cells": [{"outputs": [{"data": 3}]}]}',
    '{"model.safetensors": 3}',
    '{"../x": "y"}',
    '{"": ""}',
]


def test_json_of_other_kinds(tmp_path):
    """Wrong types, huge numbers, NaN, too deep: each reader of JSON says which file it is."""
    folder = pruned_model(tmp_path, 0)
    (tmp_path / "shipped").mkdir()
    readers = {
        "my-progress.json": (answered.read, True),
        "b.ipynb": (ledger_rows, False),
        "shipped/checksums.json": (lambda path: snapshots.weights(0, path.parent), False),
        "smaller/checksums.json": (lambda path: ht.load(path.parent), False),
    }
    for name, (read, short) in readers.items():
        path = tmp_path / name
        for text in ODD:
            path.write_text(text, encoding="utf-8")
            _, message = outcome(read, path, path.name if short else path.parent)
            assert message or name == "b.ipynb", (name, text)  # a notebook may tell nothing
    (folder / checksums.CHECKSUMS).unlink()
    for name in ("pruned_heads.json", "config.json"):
        kept = (folder / name).read_bytes()
        for text in ODD:
            (folder / name).write_text(text, encoding="utf-8")
            with pytest.raises(REFUSED, match=r"smaller"):
                ht.load(folder)
        (folder / name).write_bytes(kept)
    ht.load(folder)


def test_a_folder_of_a_model(tmp_path):
    """Every byte of a pruned model's folder is looked after: bits that turn, files cut off, swapped, lost."""
    folder, other = pruned_model(tmp_path, 0), pruned_model(tmp_path / "other", 1)
    wanted, draw = read_model(folder), random.Random(0)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        some = [*damages(data, draw)]
        if path.name != checksums.CHECKSUMS:
            some.append(("another model's", (other / path.name).read_bytes()))
        for what, damaged in some if path.name == checksums.CHECKSUMS else draw.sample(some, 15):
            path.write_bytes(damaged)
            found, message = outcome(read_model, folder)
            assert message or found == wanted, (path.name, what)
        path.unlink()
        if path.name != checksums.CHECKSUMS:
            with pytest.raises(FileNotFoundError, match=path.name):
                ht.load(folder)
            path.mkdir()
            with pytest.raises(FileNotFoundError, match=path.name):
                ht.load(folder)
            path.rmdir()
        path.write_bytes(data)
    assert read_model(folder) == wanted


def test_without_checksums_damage_is_told_where_it_shows(tmp_path):
    """Whoever changes a folder deletes them; then a number may be another, and what is no model is still refused."""
    folder = pruned_model(tmp_path, 0)
    (folder / checksums.CHECKSUMS).unlink()
    draw = random.Random(0)
    for name in ("config.json", "pruned_heads.json", "model.safetensors"):
        data = (folder / name).read_bytes()
        for _, damaged in draw.sample([*damages(data, draw)], 12):
            (folder / name).write_bytes(damaged)
            outcome(ht.load, folder)
        (folder / name).write_bytes(data)


def test_a_damaged_tokenizer_is_told(tmp_path):
    folder = pruned_model(tmp_path, 0)
    (folder / checksums.CHECKSUMS).unlink()
    ht.load()[1].save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text("utf-8")
        for damaged in ("null", "[]", "", text[: len(text) // 2], text.replace("single_word", "singleword", 1) + "}"):
            (folder / name).write_text(damaged, "utf-8")
            assert outcome(ht.load, folder)[1]
        (folder / name).write_text(text, "utf-8")
    text = (folder / "tokenizer.json").read_text("utf-8")
    (folder / "tokenizer.json").write_text(text.replace('"single_word"', '"single"', 1), "utf-8")
    with pytest.raises(ValueError, match=r"smaller: not a tokenizer that .*: missing field"):
        ht.load(folder)


def test_answers_are_told_or_kept(tmp_path):
    """A small file without a digest, which holds marks and no results: no damage ends in anything but a message."""
    path = tmp_path / "my-progress.json"
    answered.remember("01.cost", "tried", path)
    data = path.read_bytes()
    for _, damaged in damages(data, random.Random(1)):
        path.write_bytes(damaged)
        found, message = outcome(answered.read, path, path.name)
        assert message or set(found.values()) <= set(answered.STATES)


def test_a_treebank_that_is_no_text(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_bytes(b"\xff\xfe1\t")
    with pytest.raises(ValueError, match=r"a\.conllu.*UTF-8"):
        ht.corpus(path)


def test_shipped_tables_of_another_kind_or_cut_off_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "ASSETS", tmp_path)
    _results.write({"something else": 1}, tmp_path / "worth.json")
    with pytest.raises(ValueError, match=r"worth\.json holds another table.*python -m recipes\.head_importance"):
        tables.shipped("pairs")
    text = (ASSETS / "worth.json").read_text(encoding="utf-8")
    (tmp_path / "worth.json").write_text(text[:-100], encoding="utf-8")
    with pytest.raises(ValueError, match=r"worth\.json is truncated .*python -m recipes\.head_importance"):
        tables.shipped("pairs")
