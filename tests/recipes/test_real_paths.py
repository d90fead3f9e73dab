"""Path patching on the task with names, on a tiny model, beside hooks that patch every token of whole runs."""

import copy
from contextlib import ExitStack

import pytest
import torch

from recipes import _real_names, _real_paths

WIDTH, GROUP = 8, 2
SENDER, RECEIVER = ("decoder", 0, 1), ("decoder", 2, 3)


@pytest.fixture(scope="module")
def model(llama):
    return llama(layers=3)


def run(model, ids, outputs=None, projections=None):
    """Run a text; return its logits, and what each layer's output projection read and the others gave.

    outputs: {layer: z}, put in place of what the output projection would read; projections: {(layer, name): function}.
    """
    seen = {}
    with ExitStack() as stack:
        for number, layer in enumerate(model.model.layers):

            def read(_module, args, number=number):
                z = args[0] if outputs is None or number not in outputs else outputs[number](args[0])
                seen[number, "z"] = z
                return (z,)

            stack.callback(layer.self_attn.o_proj.register_forward_pre_hook(read).remove)
            for name in ("q", "k", "v"):

                def gave(_module, _args, output, key=(number, name)):
                    seen[key] = output if projections is None or key not in projections else projections[key](output)
                    return seen[key]

                stack.callback(getattr(layer.self_attn, f"{name}_proj").register_forward_hook(gave).remove)
        return model(ids).logits, seen


def with_rows(whole, part, rows, places):
    whole = whole.clone()
    whole[:, places, rows] = part[:, places, rows]
    return whole


def slice_of(head):
    return slice(head * WIDTH, (head + 1) * WIDTH)


@pytest.mark.parametrize("way", _real_paths.WAYS)
@torch.no_grad()
def test_a_path_is_what_hooks_on_whole_runs_patch(model, names_tokenizer, way):
    task = _real_names.prompts(names_tokenizer, 3)[1]
    pair = _real_paths.Pair(model, task)
    last = pair.last([SENDER], [RECEIVER])[RECEIVER, way]
    found = pair.heard(RECEIVER, way, last, pair.cache([SENDER]))

    clean, corrupted = (run(model, ids)[1] for ids in (task.clean, task.corrupted))
    everywhere = slice(None)
    sent = with_rows(clean[0, "z"], corrupted[0, "z"], slice_of(SENDER[2]), everywhere)
    frozen = {0: sent, 1: clean[1, "z"], 2: clean[2, "z"]}
    _, hears = run(model, task.clean, {layer: lambda _z, given=given: given for layer, given in frozen.items()})
    head = RECEIVER[2] if way == "query" else RECEIVER[2] // GROUP
    places = slice(-1, None) if way == "query" else everywhere
    key = (2, way[0])
    change = {key: lambda output: with_rows(output, hears[key], slice_of(head), places)}
    alone = {2: lambda z: with_rows(clean[2, "z"], z, slice_of(RECEIVER[2]), slice(-1, None))}
    logits, _ = run(model, task.clean, alone, change)
    rows = torch.arange(len(logits))
    want = logits[rows, -1, task.right] - logits[rows, -1, task.wrong]
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, pair.clean.difference(), atol=1e-3)
    plain, _ = run(model, task.clean)
    want = plain[rows, -1, task.right] - plain[rows, -1, task.wrong]
    torch.testing.assert_close(pair.clean.difference(), want, rtol=1e-4, atol=1e-4)  # nothing stays


@torch.no_grad()
def test_all_earlier_heads_give_the_corrupted_prompts_query(model, names_tokenizer):
    task = _real_names.prompts(names_tokenizer, 3)[0]
    pair = _real_paths.Pair(model, task)
    senders = [("decoder", layer, head) for layer in range(2) for head in range(4)]
    _, corrupted = run(model, task.corrupted)
    query = pair.last(senders, [RECEIVER])[RECEIVER, "query"]
    torch.testing.assert_close(query, corrupted[2, "q"][:, -1:, slice_of(RECEIVER[2])], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_a_head_finds_at_the_second_mention(model, names_tokenizer):
    tasks, others = _real_names.prompts(names_tokenizer, 3)[:2], _real_names.all_names(names_tokenizer)
    rows = _real_paths.second_mention(model, tasks, [RECEIVER], others)
    assert [row["prompt"] for row in rows] == ["clean", "corrupted"]
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    layer, norm, own = model.model.layers[2].self_attn, model.model.norm, slice_of(RECEIVER[2])
    weights, parts, at_norm = [], [], []
    hook = norm.register_forward_pre_hook(lambda _module, args: at_norm.append(args[0]))
    for task in tasks:
        for clean, ids in zip(task.clean, task.corrupted, strict=True):
            (place,) = (clean != ids).nonzero().flatten().tolist()
            weights.append(eager(ids[None], output_attentions=True).attentions[2][0, RECEIVER[2], -1, place].item())
            written = run(model, ids[None])[1][2, "z"][0, -1, own] @ layer.o_proj.weight[:, own].T
            root = (at_norm[-1][0, -1].square().mean() + norm.variance_epsilon).sqrt()
            logits = model.lm_head.weight @ (written * norm.weight / root)
            parts.append((logits[ids[place]] - logits[others].mean()).item())
    hook.remove()
    assert rows[1]["weight"] == pytest.approx(sum(weights) / len(weights), abs=1e-4)
    assert rows[1]["adds"] == pytest.approx(sum(parts) / len(parts), abs=1e-4)


def test_a_table_of_paths(model, names_tokenizer):
    rows, about = _real_paths.paths(model, names_tokenizer, {"path pairs": 2, "path templates": 8})
    assert "32 prompts of 8 templates" in about
    assert rows.pop() == {"name": "task", "prompts": 32, "templates": 8}
    receivers = {row["to"] for row in rows}
    assert len(receivers) == 3
    for receiver in receivers:
        layer = int(receiver.split(".")[0])
        own = [row for row in rows if row["to"] == receiver and "lost" in row]
        assert sum(row["name"] == "path" for row in own) == 4 * layer * 3  # from each earlier head, three ways
        assert all(row["lost_low"] <= row["lost"] + 1e-6 and row["lost"] <= row["lost_high"] + 1e-6 for row in own)


def test_a_tokenizer_that_cuts_names_up_gives_no_table(model, names_tokenizer, monkeypatch):
    monkeypatch.setattr(_real_names, "PAIRS", (("Mary Jane", "John"), *_real_names.PAIRS[1:]))
    assert _real_paths.paths(model, names_tokenizer, {"path pairs": 4, "path templates": 8})[0] == []
