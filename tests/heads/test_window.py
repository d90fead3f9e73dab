"""Windows: chosen heads see the first and the most recent tokens, the others all they saw; everything comes back."""

import pytest
import torch
from transformers import StaticCache

import headtools as ht

from .reference import untouched
from .zoo import BUILDERS, INTERFACE, LEFT, error, fresh, run, zoo_model

CAUSAL = tuple(name for name in INTERFACE if BUILDERS[name][1] == "causal")
CASES = [(name, "right") for name in CAUSAL] + [(name, "left") for name in LEFT if name in CAUSAL]


def allowed(mask, first, recent):
    """Which keys a query sees, token by token: (B, T, T)."""
    seen = torch.zeros(*mask.shape, mask.shape[1], dtype=torch.bool)
    for row, real in enumerate(mask.bool().tolist()):
        places = [place for place, flag in enumerate(real) if flag]
        for rank, query in enumerate(places):
            for other, key in enumerate(places[: rank + 1]):
                seen[row, query, key] = other < first or rank - other < recent
    return seen


@pytest.mark.parametrize(("name", "side"), CASES)
@pytest.mark.parametrize(("first", "recent"), [(1, 2), (0, 1)])
def test_weights_of_hidden_keys_go_to_the_others(name, side, first, recent):
    model, batch = zoo_model(name, side)
    site = next(iter(ht.sites(model)))
    with ht.record(model, want=("maps",)) as plain:
        before = run(model, batch)
    with untouched(model), ht.window(model, {site.key: [1]}, first, recent), ht.record(model, want=("maps",)) as seen:
        inside = run(model, batch)
    visible = allowed(batch["attention_mask"], first, recent)
    maps, now = plain[site].maps, seen[site].maps
    kept = maps[:, 1] * visible
    sink = 1 - maps[:, 1].sum(-1, keepdim=True) if name == "gpt_oss" else 0  # a learned sink, which is no key
    expected = kept / (kept.sum(-1, keepdim=True) + sink)
    real = batch["attention_mask"].bool()
    assert (now[:, 1] - expected)[real].abs().max() <= 1e-4
    others = [head for head in range(site.heads) if head != 1]
    assert torch.equal(now[:, others][:, :, real[0]], maps[:, others][:, :, real[0]])
    assert error(inside, before) > 1e-4, "the window hid nothing"


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_cache_sees_what_the_whole_text_sees(name, cache):
    model, batch = zoo_model(name, "left")
    heads = {site.key: [0, 2] for site in ht.sites(model)}
    options = {
        "do_sample": False,
        "max_new_tokens": 6,
        "pad_token_id": 0,
        "eos_token_id": None,
        "output_logits": True,
        "return_dict_in_generate": True,
    }

    def logits(**more):
        return torch.stack(model.generate(**batch, **options, **more).logits)

    with ht.window(model, heads, first=1, recent=3):
        whole, cached = logits(use_cache=False), logits(cache_implementation=cache)
    assert error(whole, cached) <= 1e-4
    assert error(whole, logits()) > 1e-3, "the window makes no difference here"


def test_windows_inside_one_another_hide_what_any_hides():
    model, batch = zoo_model("llama")
    key = ("decoder", 0)
    with ht.window(model, {key: [0]}, 0, 3), ht.window(model, {key: [0, 1]}, 1, 1), ht.record(model, "maps") as seen:
        run(model, batch)
    last = int(batch["attention_mask"][0].sum()) - 1
    maps = seen[key].maps[0, :2, last] > 0
    assert maps[0].nonzero().flatten().tolist() == [last]
    assert maps[1].nonzero().flatten().tolist() == [0, last]


@pytest.mark.parametrize(
    ("name", "heads", "sizes", "kind", "message"),
    [
        ("llama", {("decoder", 0): [0]}, (-1, 2), ValueError, "got first=-1, recent=2"),
        ("llama", {("decoder", 0): [0]}, (1, 0), ValueError, "recent >= 1"),
        ("llama", {("decoder", 0): [9]}, (1, 2), IndexError, "heads 0..5"),
        ("bert", {("encoder", 0): [0]}, (1, 2), ValueError, "does not read from left to right"),
        ("marian", {("cross", 0): [0]}, (1, 2), ValueError, "does not read from left to right"),
        ("gptj", {("decoder", 0): [0]}, (1, 2), ValueError, "does not use transformers' AttentionInterface"),
    ],
)
def test_what_is_refused(name, heads, sizes, kind, message):
    model, _ = zoo_model(name)
    with pytest.raises(kind, match=message), ht.window(model, heads, *sizes):
        pass


def test_a_static_cache_whose_slots_are_empty():
    """Its first pass has no mask and more keys than queries: heads saw the future, and empty slots."""
    model, batch = fresh("llama")
    ids, heads = batch["input_ids"][:1, :5], {("decoder", 0): [1, 4]}
    outputs = {}
    for kernel in ("sdpa", "eager"):
        model.set_attn_implementation(kernel)
        with torch.no_grad(), ht.window(model, heads, first=1, recent=2):
            outputs[kernel] = model(input_ids=ids).logits
            cache = StaticCache(config=model.config, max_cache_len=12)
            cached = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        assert error(cached, outputs[kernel]) <= 1e-5
    assert error(outputs["sdpa"], outputs["eager"]) <= 1e-4
