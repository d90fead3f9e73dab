"""Rows of maps, block by block: the same as the whole map, and nothing larger than a block of rows lives."""

import weakref

import pytest
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama import modeling_llama

import headtools as ht
from headtools.heads import _attention

from .zoo import INTERFACE, run, zoo_model


@pytest.fixture
def small_blocks(monkeypatch):
    """Let short texts go the way of long ones: blocks of two queries, masks by block."""
    monkeypatch.setattr(_attention, "WHOLE", 2)
    monkeypatch.setattr(_attention, "N_QUERIES", 2)
    monkeypatch.setattr(_attention, "LAZY_FROM", 1)


def rows_of(model, batch):
    """The maps put together from their blocks, and what the model gives."""
    blocks = {}
    with ht.record(
        model, "rows", lambda site, seen, _: blocks.setdefault(site.key, []).append((seen.first, seen.rows))
    ):
        output = run(model, batch)
    return blocks, output


def test_blocks_give_one_output_with_gradients_and_without_and_keep_none_of_their_own(small_blocks, monkeypatch):
    model = LlamaModel(
        LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4)
    )
    file, kept, alive = modeling_llama, [], []
    own = file.eager_attention_forward

    def watched(*args, **kwargs):
        alive.append(sum(output() is not None for output in kept))
        output, rows = own(*args, **kwargs)
        kept.append(weakref.ref(output))
        return output, rows

    monkeypatch.setattr(file, "eager_attention_forward", watched)
    batch = {"input_ids": torch.arange(9)[None]}
    expected = model.eval()(**batch).last_hidden_state
    with ht.record(model, "rows", lambda *_: None):
        torch.testing.assert_close(model(**batch).last_hidden_state, expected)
        with torch.no_grad():
            kept.clear()
            alive.clear()
            torch.testing.assert_close(model(**batch).last_hidden_state, expected)
    assert len(alive) == 2 + 5  # whether it can be asked for some queries, then blocks of two
    # An output that stays lies where the rows of its block were: memory then grows as if those were kept.
    assert max(alive) <= 1, alive


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", INTERFACE)
def test_blocks_are_the_rows_of_maps(name, side, small_blocks):
    model, batch = zoo_model(name, side)
    calls = {}
    with ht.record(model, "maps", lambda site, seen, _: calls.setdefault(site.key, []).append(seen.maps)):
        expected = run(model, batch)
    blocks, output = rows_of(model, batch)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    assert blocks.keys() == calls.keys()
    for key, maps in calls.items():
        n_queries = sum(each.shape[2] for each in maps)  # of a layer that runs several times, one after the other
        assert sum(rows.shape[2] for _, rows in blocks[key]) == n_queries
        assert max(rows.shape[2] for _, rows in blocks[key]) <= 2
        torch.testing.assert_close(torch.cat([rows for _, rows in blocks[key]], 2), torch.cat(maps, 2))


def whole(model, batch):
    with ht.record(model, "maps") as seen:
        run(model, batch)
    return {key: seen[key].maps for key in seen}


@pytest.mark.parametrize("context", ["window", "uniform", "zero", "maps"])
def test_blocks_inside_other_contexts(context, small_blocks):
    model, batch = zoo_model("llama")
    contexts = {
        "window": lambda: ht.window(model, {("decoder", 0): [1]}, first=1, recent=2),
        "uniform": lambda: ht.ablate(model, {("decoder", 0): [1]}, "uniform"),
        "zero": lambda: ht.ablate(model, {("decoder", 0): [1]}),
        "maps": lambda: ht.record(model, ("maps", "v")),
    }
    with contexts[context]():
        expected = whole(model, batch)
        blocks, _ = rows_of(model, batch)
    for key, maps in expected.items():
        torch.testing.assert_close(torch.cat([rows for _, rows in blocks[key]], 2), maps)
        assert [first for first, _ in blocks[key]] == ([0] if context == "maps" else [0, 2, 4, 6])


def test_a_function_that_counts_its_queries_is_asked_as_a_whole_and_says_so(small_blocks, monkeypatch):
    from transformers.models.llama import modeling_llama

    own = modeling_llama.eager_attention_forward

    def biased(module, query, key, value, mask, **kwargs):  # a bias by the index of the query in what it gets
        bias = torch.arange(query.shape[2])[:, None] * torch.arange(key.shape[2]) / 9
        return own(module, query, key, value, mask + bias, **kwargs)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", biased)
    model, batch = zoo_model("llama")
    expected = whole(model, batch)
    with pytest.warns(UserWarning, match="whole attention maps"):
        blocks, _ = rows_of(model, batch)
    for key, maps in expected.items():
        [(first, rows)] = blocks[key]
        assert first == 0
        assert torch.equal(rows, maps)


def test_a_mask_that_the_model_changes_is_refused(small_blocks, monkeypatch):
    from transformers.models.llama import modeling_llama

    attention = modeling_llama.LlamaAttention.forward
    monkeypatch.setattr(
        modeling_llama.LlamaAttention,
        "forward",
        lambda self, *args, attention_mask, **kwargs: attention(
            self, *args, attention_mask=attention_mask + 1, **kwargs
        ),
    )
    with pytest.raises(ValueError, match="changes the attention mask of a long text"):
        rows_of(*zoo_model("llama"))


def test_rows_come_alone_and_block_by_block():
    model, _ = zoo_model("llama")
    for want, accumulate in (("rows", None), (("rows", "z"), lambda *_: None)):
        with pytest.raises(ValueError, match="rows come block by block"), ht.record(model, want, accumulate):
            pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_blocks_of_a_long_text_in_every_precision(dtype):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4)
    mask = torch.ones(2, 1100, dtype=torch.long)
    mask[1, :300] = 0
    batch = {"input_ids": torch.randint(9, (2, 1100)), "attention_mask": mask}
    model, blocks = LlamaModel(config).to(dtype).eval(), []
    with torch.no_grad():
        with ht.record(model, "rows", lambda site, seen, _: blocks.append(seen.rows)):
            model(**batch)
        with ht.record(model, "maps") as seen:
            model(**batch)
    close = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert len(blocks) == 18
    torch.testing.assert_close(torch.cat(blocks, 2), seen["decoder", 0].maps, rtol=close, atol=close)
