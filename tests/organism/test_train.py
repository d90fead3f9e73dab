"""Training: resumable to the bit, whole files only, and the aids do what the card says."""

import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

from headtools.heads.files import read_told
from headtools.organism import checkpoint
from headtools.organism.load import load
from headtools.organism.objective import encode
from headtools.organism.publish import publish
from headtools.organism.train import Recipe, batches, train
from headtools.organism.vocabulary import vocabulary
from headtools.roles.corpus import corpus

TINY = Recipe(steps=4, save_every=2, chunk=64, tokens=128, validate_on=8)


@pytest.fixture(scope="module")
def number():
    return {word: i for i, word in enumerate(vocabulary())}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("straight"), quiet=True)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_stopped_and_resumed_ends_at_the_same_weights(straight, tmp_path):
    train(TINY, tmp_path, stop=2, quiet=True)
    assert equal(train(TINY, tmp_path, quiet=True), straight)


def test_killed_and_resumed_ends_at_the_same_weights(straight, tmp_path):
    """kill -9 in step 4, after the checkpoint of step 2."""
    code = f"""
import os, signal, torch
from pathlib import Path
from headtools.organism import train as t

torch.set_num_threads({torch.get_num_threads()})
save, encode, calls = t.checkpoint.save, t.encode, []

def encode_or_die(batch, number):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(batch, number)

def save_and_wait_for_death(*arguments):
    save(*arguments)
    t.encode = encode_or_die

t.checkpoint.save = save_and_wait_for_death
t.train(t.Recipe(**{asdict(TINY)}), Path({str(tmp_path)!r}), quiet=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == -9, done.stderr
    assert read_told(tmp_path / checkpoint.FILE)["step"] == 2
    assert equal(train(TINY, tmp_path, quiet=True), straight)


def test_another_recipe_does_not_go_on_from_this_folder(tmp_path):
    train(TINY, tmp_path, stop=2, quiet=True)
    with pytest.raises(ValueError, match="another recipe"):
        train(replace(TINY, seed=2), tmp_path, quiet=True)


def test_seeds_differ(straight, tmp_path):
    assert not equal(train(replace(TINY, seed=2), tmp_path, quiet=True), straight)


def test_graduate_keeps_the_function(straight, number, tmp_path):
    """The plain model that is shipped computes what the apprentice computed with composed vectors."""
    batch = encode(corpus("organism", limit=4), number)
    with torch.no_grad():
        loss, _ = straight(batch, guide=0.0, tag=0.0)
    publish(straight.graduate(), tmp_path / "assets")
    model, tokenizer = load(tmp_path / "assets")
    with torch.no_grad():
        plain = model(input_ids=batch["source"], attention_mask=batch["mask"], labels=batch["wanted"]).loss
    assert abs(loss.item() - plain.item()) < 1e-5
    assert tokenizer(str(corpus("organism", limit=1)[0])).input_ids == batch["source"][0][batch["mask"][0] > 0].tolist()
    assert not list(tmp_path.glob("*.part"))


def test_encode_lines_up_with_the_gold_alignment(number):
    word = {i: w for w, i in number.items()}
    sentences = corpus("organism", limit=8)
    batch = encode(sentences, number)
    for i, s in enumerate(sentences):
        for t, (target, source) in enumerate(zip(s.target, s.alignment, strict=True)):
            assert word[int(batch["wanted"][i, t])] == target
            assert word[int(batch["given"][i, t + 1])] == target
            assert int(batch["aligned"][i, t]) == source - 1
            assert word[int(batch["translation"][i, source - 1])] == target
        assert batch["given"][i, 0] == number["<pad>"]
        assert int(batch["tagged"][i].sum()) == len(s.words)


def test_batches_hold_their_bound_and_short_sentences_come_first():
    recipe = Recipe(chunk=256)
    for short in (True, False):
        drawn = batches(recipe, 0, short)
        assert sum(map(len, drawn)) == 256
        assert all(2 * (max(len(s.words) for s in b) + 1) * len(b) <= recipe.tokens for b in drawn)
    longest = {short: max(len(s.words) for b in batches(recipe, 0, short) for s in b) for short in (True, False)}
    assert longest[True] <= 10 < longest[False]


def test_the_rate_warms_up_stays_and_falls():
    recipe = Recipe(steps=1000, warmup=100)
    rates = [recipe.rate_at(step) for step in range(1000)]
    assert rates[0] < rates[50] < rates[99] == max(rates)
    assert rates[99] == rates[349] == recipe.rate
    assert rates[999] < 0.03 * recipe.rate
