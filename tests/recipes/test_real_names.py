"""The task with names of a real model, on a tiny model that knows the words of its prompts."""

import pytest
import torch

import headtools as ht
from recipes import _real_names as recipe


@pytest.fixture(scope="module")
def model_and_tokenizer(llama, names_tokenizer):
    return llama(layers=2), names_tokenizer


def test_prompts_match_token_for_token_and_each_name_acts_once(model_and_tokenizer):
    _, tokenizer = model_and_tokenizer
    for task in recipe.prompts(tokenizer, 6):
        differ = task.clean != task.corrupted
        assert (differ.sum(1) == 1).all()  # the second mention alone
        assert (task.clean[differ] == task.wrong).all()
        assert ((task.clean == task.wrong[:, None]).sum(1) == 2).all()
        assert ((task.clean == task.right[:, None]).sum(1) == 1).all()
        assert (task.right[::2] == task.wrong[1::2]).all()  # the two prompts of a pair are each other's control


@torch.no_grad()
def test_the_last_token_run_again_is_the_whole_run_patched_at_its_end(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    task = recipe.prompts(tokenizer, 3)[1]
    clean, corrupted = (recipe.Run(model, ids, task) for ids in (task.clean, task.corrupted))
    heads, last = [("decoder", 0, 1), ("decoder", 1, 3)], [task.clean.shape[1] - 1]
    with ht.record(model, want="z") as source:
        model(task.clean)
    with ht.patch(model, heads, source, last):
        logits = model(task.corrupted).logits[:, -1]
    rows = torch.arange(len(logits))
    for _ in range(2):  # the cache is as before each time
        found = corrupted.difference(heads, clean)
        torch.testing.assert_close(found, logits[rows, task.right] - logits[rows, task.wrong], rtol=1e-4, atol=1e-4)


def test_a_table_of_names(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    rows, about = recipe.names(model, tokenizer, {"name pairs": 4})
    by_name = {name: [row for row in rows if row["name"] == name] for name in ("head", "best")}
    assert len(by_name["head"]) == 8
    assert all("direct_without_best" in row for row in by_name["head"])
    assert rows[-1]["prompts"] == 64
    assert rows[-1]["corrupted"] == pytest.approx(0, abs=1e-4)
    assert "64 prompts of 8 templates" in about
    everything = next(row for row in by_name["best"] if row["count"] == 10)  # all eight heads
    assert everything["restored"] == pytest.approx(1, abs=1e-3)
    assert everything["lost"] == pytest.approx(1, abs=1e-3)


def test_a_tokenizer_that_cuts_names_up_gives_no_table(model_and_tokenizer, monkeypatch):
    model, tokenizer = model_and_tokenizer
    monkeypatch.setattr(recipe, "PAIRS", (("Mary Jane", "John"), *recipe.PAIRS[1:]))
    assert recipe.names(model, tokenizer, {"name pairs": 4})[0] == []
