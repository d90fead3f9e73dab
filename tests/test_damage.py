"""Files of ours that something happened to: what is read is what was written, or the file is refused by its name."""

import json
import random
import re
import shutil

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools.heads.digest import digest
from headtools.heads.files import read_json, read_told, read_whole, signed, write_whole
from headtools.heads.partial import Partial
from headtools.importance.stored import origin
from headtools.lesson import answered
from headtools.lesson.claims import ledger_rows
from headtools.organism import checksums, snapshots
from headtools.organism import shipped as tables
from headtools.roles import map_classes
from headtools.sparse import checkpoint as gating
from recipes import _results
from recipes import _training_state as training

from .faults import learner

ASSETS = checksums.ASSETS
REFUSED = (ValueError, OSError)  # of which JSONDecodeError and UnicodeDecodeError tell no file, which is looked at
TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9}


def learned(module, optimizer):
    return [*module.parameters(), *(optimizer.state[p]["exp_avg"] for p in module.parameters())]


def scores(folder, seed):
    torch.manual_seed(seed)
    value = ht.HeadScores({("encoder", 0): torch.randn(4)}, "a name", notes={"kept": 0.5})
    return ht.save_scores(value, folder / "a.safetensors", {"limit": seed})


def read_scores(path):
    found = ht.load_scores(path, made_from={})
    return digest(found.values, found.name, found.notes, origin(path))


def batch(folder, seed):
    Partial(folder, {"by": "zero", "seed": 0}).save(seed, {"x": torch.arange(5.0) + seed})
    return folder / f"batch-{seed:06d}.safetensors"


def read_batch(path):
    partial = Partial(path.parent, {"by": "zero", "seed": 0})
    return [(number, partial.read(number)["x"].tolist()) for number in sorted(partial.kept)]


def gates(folder, seed):
    module, optimizer = learner(seed)
    gating.save(folder, dict(module.named_parameters()), optimizer, {"loss": torch.ones(3)}, {"seed": seed}, 3)
    return folder / gating.FILE


def read_gates(path):
    module, optimizer = learner(9)
    found = gating.restore(path.parent, dict(module.named_parameters()), optimizer, {"seed": 0})
    return found and digest(found[0], found[1], learned(module, optimizer))


def state(folder, seed):
    training.save(folder, *learner(seed), {"step": 3, "recipe": {"heads": 8, "seed": seed}})
    return folder / training.FILE


def read_state(path):
    module, optimizer = learner(9)
    found = training.restore(path.parent, module, optimizer)
    return found and digest(found, learned(module, optimizer), training.recipe(path.parent))


def results(name):
    return lambda folder, seed: shutil.copy(ASSETS / name, folder / name)


def map_labels(folder, seed):
    row = {"map": "AAECAw==", "size": 2, "label": "block"}
    _results.write({"maps": [row] * (seed + 1)}, folder / "maps.json")
    return folder / "maps.json"


def pruned_model(folder, seed):
    torch.manual_seed(seed)
    model = tf.BertForMaskedLM(tf.BertConfig(**TINY)).eval()
    ht.prune(model, {("encoder", 0): [seed]})
    return ht.save(model, folder / "smaller")


def read_model(folder):
    model, _ = ht.load(folder)
    return digest(model, ht.pruned(model))


def progress(folder, seed):
    answered.remember("01.cost", ("tried", "passed")[seed], folder / "my-progress.json")
    return folder / "my-progress.json"


# What is made, by a seed, and how it is read; most of them hold a digest, by which every change is seen.
KINDS = {
    "scores": (scores, read_scores),
    "batch": (batch, read_batch),
    "gates": (gates, read_gates),
    "training": (state, read_state),
    "map labels": (map_labels, lambda path: digest(map_classes.labelled(path))),
    "results": (results("pruning.json"), read_json),
}


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


@pytest.mark.parametrize("name", KINDS)
def test_what_is_read_is_what_was_written(name, tmp_path):
    make, read = KINDS[name]
    path = make(tmp_path, 0)
    data, wanted = path.read_bytes(), read(path)
    assert wanted
    told = 0
    for what, damaged in damages(data, random.Random(name)):
        path.write_bytes(damaged)
        found, message = outcome(read, path)
        assert message or found == wanted, (what, found)
        told += message is not None
    assert told > 40
    path.unlink()
    found, message = outcome(read, path)
    assert message or not found  # a run that has not begun
    path.mkdir()
    assert outcome(read, path)[1]
    path.rmdir()
    path.write_bytes(data)
    assert read(path) == wanted


def test_swapped_files_are_seen(tmp_path):
    """Two files of a kind in each other's place, and a file of another kind."""
    for name in ("batch", "gates"):
        make, read = KINDS[name]
        one, two = tmp_path / f"{name} 1", tmp_path / f"{name} 2"
        for folder in (one, two):
            folder.mkdir()
        path, other = make(one, 0), make(two, 1)
        path.write_bytes(other.read_bytes())
        with pytest.raises(REFUSED, match=re.escape(str(path.parent))):
            read(path)
    ht.save_scores(ht.HeadScores({("encoder", 0): torch.ones(2)}), tmp_path / "b.safetensors", {"limit": 3})
    with pytest.raises(ValueError, match="made from limit 3, not 4: compute the scores again"):
        ht.load_scores(tmp_path / "b.safetensors", made_from={"limit": 4})


def test_results_of_another_kind(tmp_path):
    path = tmp_path / "told.json"
    _results.write({"something else": 1}, path)
    with pytest.raises(ValueError, match=r"told\.json tells of something else: it has no 'maps'"):
        map_classes.labelled(path)
    _results.write({"something else": 1, "maps": []}, path)
    path.write_text(path.read_text().replace(": 1", ": 2"))
    with pytest.raises(ValueError, match=r"told\.json was changed after it was written"):
        map_classes.labelled(path)


def test_shipped_tables_of_another_kind_or_changed_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "ASSETS", tmp_path)
    _results.write({"something else": 1}, tmp_path / "worth.json")
    with pytest.raises(ValueError, match=r"worth\.json tells of something else.*python -m recipes\.head_importance"):
        tables.shipped("pairs")
    text = (ASSETS / "worth.json").read_text(encoding="utf-8")
    (tmp_path / "worth.json").write_text(text.replace("0.", "1.", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"worth\.json was changed after it was written"):
        tables.shipped("pairs")


ODD = [
    "", " ", "null", "[]", "3", "true", '"x"', "{", "}", '{"exercises": 3}', '{"digest": 3}', '{"digest": null}', "NaN",
    '{"a": NaN}', '{"a": 1e999}', "9" * 5000, "-" + "9" * 400, "[" * 100_000, '{"a":' * 100_000, '\ufeff{"a": 1}',
    '[["encoder", 1e999, 0]]', '[["encoder", 0, 9999999999999999999999]]', '[["encoder", NaN, 0]]', "[[]]", "[[0]]",
    '[["encoder", 0, -1]]', '[[["encoder"], 0, 0]]', '[[null, null, null]]', '{"cells": 3}', '{"cells": [3]}',
    '{"cells": [{"outputs": [{"data": 3}]}]}', '{"model.safetensors": 3}', '{"../x": "y"}', '{"": ""}',
]  # fmt: skip


def test_json_of_other_kinds(tmp_path):
    """Wrong types, huge numbers, NaN, too deep: each reader of JSON says which file it is."""
    folder = pruned_model(tmp_path, 0)
    (tmp_path / "shipped").mkdir()
    readers = {
        "a.json": (read_json, False), "my-progress.json": (answered.read, True), "b.ipynb": (ledger_rows, False),
        "shipped/checksums.json": (lambda path: snapshots.weights(0, path.parent), False),
        "smaller/checksums.json": (lambda path: ht.load(path.parent), False),
    }  # fmt: skip
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


@pytest.mark.parametrize("told", [
    {}, {"batch": 0}, {"batch": "x", "settings": {}}, {"batch": 1e999, "settings": {}}, {"batch": None, "settings": {}},
    {"batch": 10**400, "settings": {}}, {"batch": 0, "settings": 3}, {"batch": 0, "settings": [["a"]]},
    {"settings": 3, "step": 1}, {"settings": {"seed": 0}, "step": "x"}, {"settings": {"seed": 0}, "step": float("nan")},
    {"step": None}, {"step": []}, {"step": "x", "recipe": 3}, {"step": 1, "recipe": 3},
])  # fmt: skip
def test_whole_files_that_tell_something_else(told, tmp_path):
    """With a right digest: written by hand, or by another version."""
    readers = {"batch-000000.safetensors": read_batch, gating.FILE: read_gates, training.FILE: read_state}
    for name, read in readers.items():
        path = write_whole(tmp_path / name, {"x": torch.ones(2)}, told)
        with pytest.raises(ValueError, match=str(tmp_path)):
            read(path)
        path.unlink()


def test_headers_written_by_hand(tmp_path):
    path = tmp_path / "a.safetensors"
    for header in ("[]", "3", '{"__metadata__": 3}', '{"__metadata__": {"told": 3, "digest": "x"}}', '{"a": 3}',
                   '{"__metadata__": {"told": "{}", "digest": "x"}, "a": 3}', "{" * 50_000,
                   '{"__metadata__": {"told": "{}", "digest": "x"}, "a": {"data_offsets": []}}',
                   '{"__metadata__": {"told": "{}", "digest": "x"}, "a": {"data_offsets": [0, "x"]}}',
                   '{"__metadata__": {"told": "{}", "digest": "x"}, "a": {"data_offsets": [0, 1e999]}}'):  # fmt: skip
        for length in (len(header), 0, 2**40, 2**63):
            path.write_bytes(length.to_bytes(8, "little") + header.encode())
            for read in (read_whole, read_told):
                with pytest.raises(ValueError, match=str(path)):
                    read(path)


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
    path = progress(tmp_path, 0)
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


def test_the_digest_is_an_entry_of_its_own():
    with pytest.raises(ValueError, match="an entry 'digest' came"):
        signed({"digest": 1})
    told = {"a": [1, 2.5, None, "é"]}
    assert json.loads(json.dumps(signed(told))) == signed(told)
