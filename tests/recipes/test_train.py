"""Training: resumable to the bit, whole files only, and the aids do what the card says."""

import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

import headtools as ht
from headtools._engine.store import read_tensors
from headtools.organism import snapshots
from headtools.organism.batches import training_sentences, word_ids
from headtools.organism.load import load
from headtools.roles.corpus import corpus
from recipes import _training_state
from recipes._publish import publish
from recipes._training_model import AuxiliaryTrainingModel, training_batch
from recipes.train import Recipe, cut, main, train

TINY = Recipe(steps=4, save_every=2, chunk=64, tokens=128, validate_on=8)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("straight"), progress=False)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.full
def test_stopped_and_resumed_ends_at_the_same_weights(straight, tmp_path):
    train(TINY, tmp_path, stop=2, progress=False)
    with pytest.raises(ValueError, match="another recipe"):
        train(replace(TINY, seed=2), tmp_path, progress=False)
    assert equal(train(TINY, tmp_path, progress=False), straight)


@pytest.mark.full
def test_killed_and_resumed_ends_at_the_same_weights(straight, tmp_path):
    """kill -9 in step 4, after the checkpoint of step 2."""
    code = f"""
import os, signal
from pathlib import Path

import torch
from recipes import train as t

torch.set_num_threads({torch.get_num_threads()})
save, batch, calls = t._training_state.save, t.training_batch, []

def batch_or_die(sentences):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch(sentences)

def save_and_wait_for_death(*arguments):
    save(*arguments)
    t.training_batch = batch_or_die

t._training_state.save = save_and_wait_for_death
t.train(t.Recipe(**{asdict(TINY)}), Path({str(tmp_path)!r}), progress=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == -9, done.stderr
    assert read_tensors(tmp_path / _training_state.FILE)[1]["step"] == 2
    assert equal(train(TINY, tmp_path, progress=False), straight)


@pytest.mark.full
def test_seeds_differ(straight, tmp_path):
    assert not equal(train(replace(TINY, seed=2), tmp_path, progress=False), straight)


def test_the_exported_model_computes_what_the_training_model_computed(straight, tmp_path):
    batch = training_batch(corpus("organism", limit=4))
    with torch.no_grad():
        loss, _ = straight(batch, guide=0.0, tag=0.0)
    publish(straight.export(), tmp_path / "assets")
    model, tokenizer = load(tmp_path / "assets")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask, labels=batch["labels"]).loss
    assert abs(loss.item() - plain.item()) < 1e-5
    assert tokenizer(str(corpus("organism", limit=1)[0])).input_ids == ids[0][mask[0] > 0].tolist()
    assert not list(tmp_path.glob("*.part"))


def test_training_batches_line_up_with_the_gold_alignment():
    word = {i: w for w, i in word_ids().items()}
    sentences = corpus("organism", limit=8)
    batch = training_batch(sentences)
    for i, s in enumerate(sentences):
        for t, (target, source) in enumerate(zip(s.target, s.alignment, strict=True)):
            assert word[int(batch["labels"][i, t])] == target
            assert word[int(batch["decoder_input_ids"][i, t + 1])] == target
            assert int(batch["aligned"][i, t]) == source - 1
            assert word[int(batch["translation"][i, source - 1])] == target
        assert batch["decoder_input_ids"][i, 0] == word_ids()["<pad>"]
        assert int(batch["tagged"][i].sum()) == len(s.words)


def test_groups_hold_their_bound_and_short_sentences_come_first():
    groups = {short: training_sentences(1, 0, tokens=1_024, n=256, short=short) for short in (True, False)}
    for drawn in groups.values():
        assert sum(map(len, drawn)) == 256
        assert all(2 * (max(len(s.words) for s in group) + 1) * len(group) <= 1_024 for group in drawn)
    longest = {short: max(len(s.words) for group in drawn for s in group) for short, drawn in groups.items()}
    assert longest[True] <= 10 < longest[False]


def test_the_rate_warms_up_stays_and_falls():
    recipe = Recipe(steps=1000, warmup=100)
    rates = [recipe.rate_at(step) for step in range(1000)]
    assert rates[0] < rates[50] < rates[99] == max(rates)
    assert rates[99] == rates[349] == recipe.rate
    assert rates[999] < 0.03 * recipe.rate


# --- snapshots, other sizes, heads cut before the first step ----------------------------------------------------------


@pytest.mark.full  # trains twice
def test_keeping_snapshots_changes_nothing_and_stores_what_was_there(straight, tmp_path):
    kept = train(TINY, tmp_path / "kept", progress=False, keep=(0, 2, 4))
    weights = zip(straight.parameters(), kept.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights if a.requires_grad)
    folder = tmp_path / "kept" / "snapshots"
    assert sorted(f.name for f in folder.iterdir()) == [snapshots.path(s).name for s in (0, 2, 4)]
    halfway = train(TINY, tmp_path / "half", stop=2, progress=False).export().state_dict()
    stored = snapshots.load_file(snapshots.path(2, folder))
    assert stored.keys() == halfway.keys() - snapshots.DERIVED
    assert all(torch.equal(stored[name], halfway[name].half()) for name in stored)


@pytest.mark.full  # trains and saves
def test_the_command_trains_other_sizes_and_leaves_the_shipped_model_alone(tmp_path, monkeypatch, capsys):
    before = (snapshots.ASSETS / "checksums.json").read_text()
    monkeypatch.chdir(tmp_path)
    main(size="half", steps=1, seed=2)
    model, _ = load(tmp_path / "organism-run-seed2-heads4-steps1" / "model")
    assert model.config.encoder_attention_heads == model.config.decoder_attention_heads == 4
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in load()[0].parameters())
    assert (snapshots.ASSETS / "checksums.json").read_text() == before
    assert "trained 1 steps" in capsys.readouterr().out


@pytest.mark.full  # trains and saves
def test_the_command_puts_model_and_snapshots_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(steps=1, assets=tmp_path / "assets", run=tmp_path / "run")
    load(tmp_path / "assets")
    assert snapshots.weights(0, tmp_path / "assets" / "snapshots").keys() == snapshots.weights(0).keys()


WITHOUT = ("encoder 1.0", "encoder 1.7", *(f"encoder 3.{head}" for head in range(8)), "decoder 0.2")


def test_the_cut_model_starts_as_the_uncut_one_without_these_heads():
    batch = training_batch(corpus("organism", limit=3))
    torch.manual_seed(5)
    uncut = AuxiliaryTrainingModel()
    torch.manual_seed(5)
    small = AuxiliaryTrainingModel()
    cut(small.model, WITHOUT)
    heads = [(kind, int(at[0]), int(at[2])) for kind, at in map(str.split, WITHOUT)]
    with torch.no_grad(), ht.ablate(uncut.model, heads):
        a, b = (model(batch, guide=0.0, tag=0.5)[0] for model in (uncut, small))
    assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.full  # trains four times
def test_what_was_cut_stays_away_and_training_resumes(tmp_path):
    recipe = replace(TINY, steps=3, without=WITHOUT)
    trained = train(recipe, tmp_path / "one", progress=False)
    sites = ht.sites(trained.model)
    assert [sites["encoder", layer].heads for layer in (0, 1)] == [8, 6]
    assert sites["decoder", 0].heads == 7
    assert sites["encoder", 3].empty
    silent = trained.model.model.encoder.layers[3].self_attn
    assert not silent.out_proj.weight.any()
    assert silent.out_proj.bias.any(), "the bias stays and learns"
    with pytest.raises(ValueError, match=r"every cross head, so cross 1\.2 cannot be cut"):
        cut(AuxiliaryTrainingModel().model, ["encoder 0.0", "cross 1.2"])
    train(recipe, tmp_path / "two", stop=2, progress=False)
    assert equal(train(recipe, tmp_path / "two", progress=False), trained)
    with pytest.raises(ValueError, match="another model's weights"):
        train(TINY, tmp_path / "two", progress=False)
