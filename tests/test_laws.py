"""Laws of heads/ and importance/ on models of any architecture, size, precision and side of padding.

Those of roles/ and sparse/ are in ``roles/test_laws.py`` and ``sparse/test_laws.py``.
"""

import copy
import json
from contextlib import ExitStack, nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtools as ht
from headtools.importance.loss import label_loss

from .heads.reference import bias_of, untouched, watch
from .laws import close, law, logits, logits_of, real, some
from .random_models import drawn

# Padding on the left moves BERT's, DistilBERT's and Marian's absolute positions: another input, not the same one.
EXACT = ("float32", "float64")
MOVABLE = ("gpt2", "opt", "llama", "qwen3", "phi3")


@law(40)
@given(drawn())
def test_looking_changes_nothing(one):
    plain = logits(one)
    with untouched(one.model):
        with ht.record(one.model, want="z") as seen:
            assert torch.equal(logits(one), plain)
        with ht.gates(one.model, {site.key: torch.ones(site.heads) for site in ht.sites(one.model)}):
            assert torch.equal(logits(one), plain)
        with ht.patch(one.model, {site.key: range(site.heads) for site in ht.sites(one.model)}, seen):
            assert torch.equal(logits(one), plain)
        with ht.record(one.model, want=("maps", "v", "z")) as seen:  # by another kernel
            assert close(one, real(one, logits(one)), real(one, plain), 4 * one.close)
    for key in seen:
        site, maps = seen.sites[key], seen[key].maps
        looking = None if key[0] == "cross" or one.family == "vit" else one.batch.get("attention_mask")
        if key[0] != "encoder" and one.family in ("t5", "marian"):
            looking = None
        assert maps.dtype == torch.float32
        assert maps.min() >= 0
        rows = maps.transpose(1, 2)  # (B, query, head, key)
        rows = rows[looking.bool()] if looking is not None else rows.flatten(0, 1)
        assert close(one, rows.sum(-1), torch.ones(rows.shape[:-1]))
        # a head's output is its map times its values, shared by a group of heads or not
        values = seen[key].v.repeat_interleave(site.heads // seen[key].v.shape[1], 1)
        z = (maps.to(values.dtype) @ values).transpose(1, 2)
        keep = looking.bool() if looking is not None else ...
        assert close(one, seen[key].z[keep], z[keep])


@law(30)
@given(drawn())
def test_what_heads_write_adds_up(one):
    found = ht.sites(one.model)
    with watch(found) as pairs, ht.record(one.model, want="z") as seen:
        logits(one)
    for site in found:
        added = ht.contributions(site, seen[site].z).sum(2) + bias_of(site.out)
        assert close(one, added, pairs[site.key][0][1])


@law(40)
@given(drawn(), st.data())
def test_off_is_zero_is_cut(one, data):
    heads, found = some(data, one.model), ht.sites(one.model)
    values = {key: torch.ones(found[key].heads).index_fill(0, torch.tensor(off), 0.0) for key, off in heads.items()}
    with untouched(one.model):
        with ht.gates(one.model, values):
            closed = logits(one)
        with ht.ablate(one.model, heads):
            assert torch.equal(logits(one), closed)
    fresh = copy.deepcopy(one.model)
    cut = copy.deepcopy(one.model)
    ht.prune(cut, heads)
    assert close(one, real(one, logits_of(cut, one)), real(one, closed))
    assert sorted(ht.pruned(cut)) == sorted((*key, head) for key, off in heads.items() for head in off)
    ht.replay(fresh, json.loads(json.dumps(ht.pruned(cut))))
    fresh.load_state_dict(cut.state_dict())
    assert torch.equal(logits_of(fresh, one), logits_of(cut, one))


CONTEXTS = ("record", "gates", "zero", "mean", "resample", "uniform", "patch")


def enter(way, one, heads):
    if way == "record":
        return ht.record(one.model)
    if way == "gates":
        return ht.gates(one.model, {site.key: torch.rand(site.heads) for site in ht.sites(one.model)})
    if way == "patch":
        with ht.record(one.model, want="z") as seen:
            logits(one)
        return ht.patch(one.model, heads, seen)
    batch = {name: value for name, value in one.batch.items() if name != "labels"}
    return ht.ablate(one.model, heads, replacement=way, reference=batch)


@law(40)
@given(drawn(), st.data())
def test_contexts_give_the_model_back_whatever_happens(one, data):
    ways = data.draw(st.lists(st.sampled_from(CONTEXTS), min_size=1, max_size=3), label="contexts")
    depth = data.draw(st.sampled_from(["in the context", "in a layer", "nowhere"]), label="error")
    heads, plain = some(data, one.model), logits(one)

    def fail(*_):
        raise KeyboardInterrupt

    expected = nullcontext() if depth == "nowhere" else pytest.raises(KeyboardInterrupt)
    with untouched(one.model), expected, ExitStack() as stack:
        for way in ways:
            stack.enter_context(enter(way, one, heads))
        if depth == "in a layer":
            last = list(ht.sites(one.model))[-1]
            stack.callback(last.module.register_forward_hook(fail).remove)
        logits(one)
        if depth == "in the context":
            fail()
    assert torch.equal(logits(one), plain)


@law(30)
@given(drawn(MOVABLE, EXACT) | drawn(dtypes=EXACT, sides=("right",)))
def test_company_and_padding_change_nothing(one):
    """What an example scores does not depend on what else is in its batch."""
    whole = {"slope": ht.gradient(one.model, one.batch, signed=True).rows}
    whole["rise"] = ht.ablation(one.model, one.batch, progress=False).rows
    if one.family != "vit":
        whole["relevance"] = ht.relevance(one.model, one.batch, score=first_logit, rules="cp", signed=True).rows
    for number in range(len(one.lengths)):
        batch = one.alone(number)
        alone = {"slope": ht.gradient(one.model, batch, signed=True).rows}
        alone["rise"] = ht.ablation(one.model, batch, progress=False).rows
        if one.family != "vit":
            alone["relevance"] = ht.relevance(one.model, batch, score=first_logit, rules="cp", signed=True).rows
        for name, found in alone.items():
            for key, rows in found.items():
                assert close(one, whole[name][key][number : number + 1], rows, 10 * one.close), (name, key)


def first_logit(outputs, batch):
    """One number of each example that padding on either side leaves alone: logit 3 of its last real token."""
    if "decoder_input_ids" in batch:
        return outputs.logits[:, -1, 3]
    mask = batch["attention_mask"]
    last = (mask * torch.arange(1, mask.shape[1] + 1)).argmax(1)
    return outputs.logits[torch.arange(len(last)), last, 3]


@law(30)
@given(drawn(dtypes=("float64",)), st.data())
def test_slopes_are_central_differences(one, data):
    slopes = ht.gradient(one.model, one.batch, signed=True).rows
    site = data.draw(st.sampled_from(list(ht.sites(one.model))), label="site")
    head = data.draw(st.integers(0, site.heads - 1), label="head")
    step, losses = 1e-3, []
    for way in (1, -1):
        gate = torch.ones(site.heads, dtype=torch.float64)
        gate[head] += way * step
        with torch.no_grad(), ht.gates(one.model, {site.key: gate}):
            outputs = one.model(**{name: value for name, value in one.batch.items() if name != "labels"})
        losses.append(label_loss(one.model, outputs, one.batch))
    difference = (losses[0] - losses[1]) / (2 * step)
    # float32 inside RMSNorm, and the kinks of T5's ReLU, limit what a difference can tell
    rough = 5e-3 if one.family in ("t5", "opt", "llama", "qwen3", "phi3") else 1e-4
    assert close(one, slopes[site.key][:, head], difference, rough)
    gate = {
        s.key: torch.ones(len(one.lengths), s.heads, dtype=torch.float64, requires_grad=True)
        for s in ht.sites(one.model)
    }
    with ht.gates(one.model, gate):
        outputs = one.model(**{name: value for name, value in one.batch.items() if name != "labels"})
        label_loss(one.model, outputs, one.batch).sum().backward()
    for key, slope in slopes.items():
        assert close(one, slope, gate[key].grad)
    one.model.zero_grad()


@law(30)
@given(drawn(), st.data())
def test_leaving_one_out_is_a_loop(one, data):
    by = data.draw(st.sampled_from(["zero", "mean", "resample", "uniform"]), label="by")
    inputs = {name: value for name, value in one.batch.items() if name != "labels"}

    def loss():
        with torch.no_grad():
            return label_loss(one.model, one.model(**inputs), one.batch).double()

    with untouched(one.model):
        found = ht.ablation(one.model, one.batch, replacement=by, progress=False).rows
    whole = loss()
    for site in ht.sites(one.model):
        for head in range(site.heads):
            with ht.ablate(one.model, {site.key: [head]}, replacement=by, reference=inputs):
                assert close(one, found[site.key][:, head], loss() - whole), (site.key, head)


@law(20)
@given(drawn(dtypes=EXACT), st.data())
def test_two_heads(one, data):
    every = [(*site.key, head) for site in ht.sites(one.model) for head in range(site.heads)]
    inputs = {name: value for name, value in one.batch.items() if name != "labels"}

    def loss(off):
        with torch.no_grad(), ht.ablate(one.model, off):
            return label_loss(one.model, one.model(**inputs), one.batch).double().mean()

    whole = loss([])
    if len(every) > 1:
        a, b = data.draw(st.lists(st.sampled_from(every), min_size=2, max_size=2, unique=True), label="pair")
        row = ht.interaction(one.model, one.batch, [(a, b)], progress=False).iloc[0]
        in_frame = torch.tensor([row["delta_a"], row["delta_b"], row["delta_ab"]])
        assert close(one, in_frame, torch.stack([loss([a]), loss([b]), loss([a, b])]) - whole)


@law(20)
@given(drawn(dtypes=EXACT), st.data())
def test_gates_that_were_learnt_can_be_cut(one, data):
    gate = ht.HardConcrete(ht.sites(one.model))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 99), label="seed"))
    with torch.no_grad():
        gate.log_alpha.copy_(torch.where(torch.rand(gate.log_alpha.shape, generator=draw) < 0.5, -20.0, 20.0))
    values = gate.split(gate.test_gates())
    left = gate.open_heads()
    assert gate.expected_l0().item() == pytest.approx(len(left), abs=1e-3)
    with ht.gates(one.model, values):
        closed = logits(one)
    cut = copy.deepcopy(one.model)
    gone = [head for head in gate.heads if head not in left]
    if gone:  # a cut of nothing is refused
        ht.prune(cut, gone)
    assert close(one, real(one, logits_of(cut, one)), real(one, closed))
