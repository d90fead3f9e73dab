"""fit_gates: it finds the heads a loss needs, keeps its promises about the model, and goes on after any stop."""

import copy
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

import headtools as ht
from headtools.sparse._trainer import FILE
from headtools.sparse.fit_gates import fit_gates, recover
from headtools.sparse.hard_concrete import HardConcrete

from ..heads.zoo import fresh, run, zoo_model

NEEDED = [("encoder", 0, 1), ("encoder", 1, 2), ("encoder", 2, 0)]


def loss(outputs, batch):
    """Per example: how far the model's answer is from the wanted one."""
    return (outputs.logits - batch["wanted"]).square().mean((1, 2))


@pytest.fixture(scope="module")
def batches():
    """Batches for ``loss``; wanted is what the model gives with three of its twelve heads alone."""
    model, batch = zoo_model("bert")
    others = [head for head in HardConcrete(ht.sites(model)).heads if head not in NEEDED]
    some = [{key: value.roll(i, 0) for key, value in batch.items()} for i in range(3)]
    with ht.ablate(model, others):
        return [one | {"wanted": run(model, one)} for one in some]


def fit(batches, penalty=0.02, model=None, **options):
    options = {"loss": loss, "weights": None, "steps": 8, "progress": False} | options
    return fit_gates(model or zoo_model("bert")[0], batches, penalty, **options)


def same(one, other):
    """Bit for bit the same course and the same weights."""
    assert torch.equal(torch.tensor(one.history.values), torch.tensor(other.history.values))
    assert one.losses.equals(other.losses)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def state(model):
    """All that a run must leave as it was."""
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    return weights, flags, [module.training for module in model.modules()]


def assert_untouched(before, model):
    weights, flags, modes = before
    now = state(model)
    assert all(torch.equal(value, now[0][name]) for name, value in weights.items())
    assert modes == now[2]
    for (flag, gradient), (flag_now, gradient_now) in zip(flags, now[1], strict=True):
        assert flag == flag_now
        assert (gradient is None) == (gradient_now is None)
        assert gradient is None or torch.equal(gradient, gradient_now)


# --- what it finds ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def puzzle():
    """One layer of eight heads, and a batch that wants what two of them give alone."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_attention_heads=8,
        num_hidden_layers=1,
        intermediate_size=16,
        vocab_size=40,
        initializer_range=0.3,
    )
    model, ids = BertForMaskedLM(config).eval(), torch.randint(0, 40, (8, 6))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with ht.ablate(model, {("encoder", 0): [0, 2, 3, 5, 6, 7]}):
        return model, batch, run(model, batch)


def test_the_heads_that_the_loss_needs_stay_open(puzzle):
    model, batch, wanted = puzzle
    needed, price = [("encoder", 0, 1), ("encoder", 0, 4)], 0.5
    found = fit([batch | {"wanted": wanted}], price, model, steps=200, settled=0.9, per="example")
    assert found.open_heads == needed
    assert len(found.history) - 1 < 200, "all gates have closed or opened: the run stops"
    assert set(found.scores.top(2)) == set(needed)
    assert sorted([*found.open_heads, *found.closed_heads]) == sorted(found.gates.heads)
    assert found.losses.loss.iloc[-1] < 0.2 * found.losses.loss.iloc[0]
    assert found.losses.open.iloc[0] == 8
    assert found.losses.l0.iloc[0] == pytest.approx(8 * found.gates.p_open(torch.tensor(2.2)).item())
    assert (found.history.iloc[0] == found.history["encoder", 0, 1].iloc[0]).all()
    last = torch.tensor([found.history[head].iloc[-1] for head in found.gates.heads])
    torch.testing.assert_close(last, found.gates.log_alpha.detach().double(), check_dtype=False)
    # cut: the same function as with the gates fixed, and what was wanted
    cut = found.cut()
    assert ht.sites(cut).n_heads == 2
    with ht.gates(model, found.values()):
        torch.testing.assert_close(run(cut, batch), run(model, batch), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(run(cut, batch), wanted, atol=1e-4, rtol=1e-4)


def test_cut_saved_and_loaded_is_the_gated_model(tmp_path):
    """Gated = cut to 1e-5, and what was cut comes back bit for bit from a safetensors file and a line of JSON."""
    model, batch = fresh("marian")
    start = {site.key: torch.full((site.heads,), 3.0) for site in ht.sites(model)}
    start["encoder", 0][1], start["cross", 1][0], start["decoder", 0][:] = -3.0, -3.0, -3.0
    labelled = [batch | {"labels": batch["decoder_input_ids"]}]
    found = fit_gates(model, labelled, 0.0, steps=3, start=start, progress=False)
    assert ("encoder", 0, 1) in found.closed_heads
    cut, student = found.cut().eval(), found.model.eval()
    with ht.gates(student, found.values()):
        torch.testing.assert_close(run(cut, batch), run(student, batch), atol=1e-5, rtol=1e-5)
    assert (run(cut, batch) - run(student, batch)).abs().max() > 1e-3, "the closed heads did something"
    save_file(
        {
            name: value.contiguous()
            for name, value in cut.state_dict().items()
            if "lm_head" not in name and "embed_tokens" not in name
        },
        tmp_path / "cut.safetensors",
    )
    (tmp_path / "heads.json").write_text(json.dumps(ht.pruned(cut)), encoding="utf-8")
    loaded, _ = fresh("marian")
    ht.replay(loaded, json.loads((tmp_path / "heads.json").read_text(encoding="utf-8")))
    missing, unknown = loaded.load_state_dict(load_file(tmp_path / "cut.safetensors"), strict=False)
    assert not unknown
    assert not [name for name in missing if "lm_head" not in name and "embed_tokens" not in name]
    assert torch.equal(run(loaded, batch), run(cut, batch))


def test_no_price_closes_nothing_and_a_high_one_everything(batches):
    free, dear = fit(batches[:1], [0.0, 5.0], loss=lambda outputs, batch: loss(outputs, batch) * 0, steps=60)
    assert len(free.open_heads) == 12
    assert (free.history.values == free.history.values[0]).all()
    assert dear.open_heads == []
    assert ht.sites(dear.cut()).n_heads == 0


@pytest.mark.parametrize("per", ["batch", "example"])
def test_several_penalties_go_as_each_would_alone(batches, per):
    penalties = [0.0, 0.05, 1.0]
    together = fit(batches, penalties, per=per, seed=3)
    assert [one.penalty for one in together] == penalties
    for penalty, one in zip(penalties, together, strict=True):
        alone = fit(batches, penalty, per=per, seed=3)
        histories = [torch.tensor(result.history.values) for result in (one, alone)]
        torch.testing.assert_close(*histories, atol=2e-3, rtol=0)
        torch.testing.assert_close(torch.tensor(one.losses.loss), torch.tensor(alone.losses.loss), rtol=1e-3, atol=1e-5)
    assert not together[0].history.equals(together[2].history)


def test_a_loss_of_one_number_is_a_mean(batches):
    """The gradient is the one of the loss example by example, also with several sets of gates."""
    one = fit(batches, [0.0, 0.05])
    mean = fit(batches, [0.0, 0.05], loss=lambda outputs, batch: loss(outputs, batch).mean())
    for a, b in zip(one, mean, strict=True):
        torch.testing.assert_close(torch.tensor(a.history.values), torch.tensor(b.history.values), atol=1e-3, rtol=0)


def test_a_model_in_bfloat16(batches):
    """Its losses are in bfloat16, which numpy does not have."""
    model = copy.deepcopy(zoo_model("bert")[0]).to(torch.bfloat16)
    found = fit(batches, model=model, steps=2)
    assert found.losses.loss.dtype == "float32"
    assert found.losses.loss.iloc[0] == pytest.approx(fit(batches, steps=2).losses.loss.iloc[0], rel=0.05)
    assert recover(model, batches, loss=loss, steps=1, progress=False).dtype == torch.bfloat16


def test_rates_fall_at_the_end(batches):
    """Under a steady push Adam moves by the learning rate, whatever the gradient's size."""
    found = fit(batches, 5.0, loss=lambda outputs, batch: loss(outputs, batch) * 0, steps=10, decay=0.5, gate_rate=0.01)
    moved = -torch.tensor(found.history.values).diff(dim=0).mean(1)
    torch.testing.assert_close(moved, torch.tensor([1.0] * 6 + [0.8, 0.6, 0.4, 0.2]) * 0.01, rtol=0.05, atol=0)


def test_a_seed_decides_everything(batches):
    before = torch.get_rng_state()
    same(fit(batches, seed=5), fit(batches, seed=5))
    assert torch.equal(before, torch.get_rng_state())
    assert not fit(batches, seed=5).history.equals(fit(batches, seed=6).history)


# --- what it does to the model ----------------------------------------------------------------------------------------


def translation(name="marian"):
    model, batch = fresh(name)
    return model, [batch | {"labels": batch["decoder_input_ids"]}]


def test_a_frozen_decoder_and_what_it_shares_stay():
    model, batches = translation()
    model.train()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    model.lm_head.weight.requires_grad_(False)
    before = state(model)
    found = fit_gates(model, batches, 0.1, sites="encoder", weights="encoder", steps=2, progress=False)
    assert_untouched(before, model)
    assert found.model is not model
    assert set(found.history.columns.get_level_values("kind")) == {"encoder"}
    was, now = dict(model.named_parameters()), dict(found.model.named_parameters())
    changed = {name for name in was if not torch.equal(was[name], now[name])}
    assert any("encoder.layers" in name for name in changed)
    assert not [name for name in changed if "encoder.layers" not in name and "encoder.layer_norm" not in name]
    assert found.model.training
    assert [p.requires_grad for p in found.model.parameters()] == [p.requires_grad for p in model.parameters()]
    everything = fit_gates(model, batches, 0.1, steps=2, progress=False)
    changed = {name for name, p in everything.model.named_parameters() if not torch.equal(p, was[name])}
    assert any("decoder.layers" in name for name in changed)
    assert not any("shared" in name or "embed_tokens" in name for name in changed), "these are frozen"
    free = copy.deepcopy(model)
    free.lm_head.weight.requires_grad_(True)
    everything = fit_gates(free, batches, 0.1, steps=2, progress=False)
    changed = {name for name, p in everything.model.named_parameters() if not torch.equal(p, was[name])}
    assert any("shared" in name or "embed_tokens" in name for name in changed)
    chosen = fit_gates(model, batches, 0.1, weights=["model.decoder.layers.1."], steps=2, progress=False).model
    changed = {name for name, p in chosen.named_parameters() if not torch.equal(p, was[name])}
    assert changed
    assert all(name.startswith("model.decoder.layers.1.") for name in changed)
    assert_untouched(before, model)


def test_frozen_weights_leave_the_model_itself(batches):
    model, _ = fresh("bert")
    model.train()
    before = state(model)
    assert fit(batches, model=model).model is model
    assert_untouched(before, model)


def test_an_exception_leaves_the_model_whole(batches):
    model, _ = fresh("bert")
    before, calls = state(model), []

    def breaks(outputs, batch):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("out of memory, say")
        return loss(outputs, batch)

    for weights in ("all", None):
        calls.clear()
        with pytest.raises(RuntimeError, match="out of memory"):
            fit(batches, model=model, weights=weights, loss=breaks, in_place=True)
        assert_untouched(before, model)
    nan = {"loss": lambda outputs, batch: loss(outputs, batch) * float("nan")}
    with pytest.raises(FloatingPointError, match="nan at step 0"):
        fit(batches, model=model, weights="all", in_place=True, **nan)
    assert_untouched(before, model)
    plain = fit(batches, model=model, weights="all")
    assert_untouched(before, model)
    assert fit(batches, model=model, weights="all", in_place=True).model is model
    same(fit(batches, weights="all"), plain)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["gpt2", "t5", "llama"])
def test_other_architectures(name):
    model, batch = fresh(name)
    labels = batch.get("decoder_input_ids", batch["input_ids"])
    found = fit_gates(model, [batch | {"labels": labels}], 0.1, steps=2, progress=False)
    assert found.history.shape == (3, ht.sites(model).n_heads)
    assert found.losses.loss.notna().all()


# --- stopping and going on --------------------------------------------------------------------------------------------

RUN = {"weights": "all", "steps": 8, "save_every": 3, "seed": 2}


@pytest.fixture(scope="module")
def straight(batches):
    return fit(batches, **RUN)


def killed(batches, folder, when):
    """Start a run in another process and have it killed (kill -9) at a step, or while it saves."""
    child = os.fork()
    if child == 0:
        try:

            def die(*_):
                os.kill(os.getpid(), signal.SIGKILL)

            if when == "saving":
                os.replace = die  # in this process only
            fit(lambda step: die() if step == when else batches[step % 3], checkpoint=folder, **RUN)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("when", [0, 2, 3, 7, "saving"])
def test_killed_and_resumed_ends_the_same(batches, straight, tmp_path, when):
    killed(batches, tmp_path, when)
    assert (tmp_path / FILE).exists() == (when in (3, 7))
    same(fit(batches, checkpoint=tmp_path, **RUN), straight)
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".part"] == [FILE]
    asked = []
    same(fit(lambda step: asked.append(step), checkpoint=tmp_path, **RUN), straight)
    assert not asked, "a finished run does nothing more"


def test_several_penalties_go_on_too(batches, tmp_path):
    def stops(step):
        if step == 4:
            raise KeyboardInterrupt
        return batches[step % 3]

    options = {"penalty": [0.01, 0.1], "save_every": 2}
    with pytest.raises(KeyboardInterrupt):
        fit(stops, checkpoint=tmp_path, **options)
    for one, other in zip(fit(batches, checkpoint=tmp_path, **options), fit(batches, **options), strict=True):
        same(one, other)


def test_another_run_does_not_go_on_from_this_folder(batches, tmp_path):
    fit(batches, checkpoint=tmp_path)
    weights = "weights at the start"
    for change, name in (({"penalty": 0.5}, "penalty"), ({"seed": 1}, "seed"), ({"start": 1.0}, weights)):
        with pytest.raises(ValueError, match=f"another run.*{name}"):
            fit(batches, checkpoint=tmp_path, **change)
    model, _ = fresh("bert")
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    with pytest.raises(ValueError, match="weights at the start"):
        fit(batches, checkpoint=tmp_path, model=model)


def test_recovery(batches, tmp_path):
    model, _ = fresh("bert")
    ht.prune(model, [("encoder", 0, 1)])
    before = state(model)

    def distance(student):
        with torch.no_grad():
            return sum(loss(student(**batch), batch).mean().item() for batch in batches)

    better = recover(model, batches, steps=30, loss=loss, rate=1e-3, progress=False)
    assert_untouched(before, model)
    assert ht.pruned(better) == [("encoder", 0, 1)]
    assert distance(better) < 0.9 * distance(model)
    half = {"steps": 6, "loss": loss, "progress": False, "checkpoint": tmp_path, "save_every": 2}

    def stops(step):
        if step == 3:
            raise KeyboardInterrupt
        return batches[step % 3]

    with pytest.raises(KeyboardInterrupt):
        recover(model, stops, **half)
    resumed = recover(model, batches, **half)
    whole = recover(model, batches, **half | {"checkpoint": None}, in_place=True)
    assert whole is model
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"penalty": -1}, ValueError, "at least 0"),
        ({"penalty": float("nan")}, ValueError, "at least 0"),
        ({"penalty": []}, ValueError, "at least 0"),
        ({"penalty": [0.1, 0.2], "weights": "all"}, ValueError, "weights=None"),
        ({"steps": 0}, ValueError, "1 or more"),
        ({"ramp": 2.0}, ValueError, "ramp is a fraction"),
        ({"decay": -0.1}, ValueError, "decay is a fraction"),
        ({"settled": 1.0}, ValueError, "between 0.5 and 1"),
        ({"weights": "encoder"}, ValueError, "no encoder of its own"),
        ({"weights": ["nowhere"]}, ValueError, "no weight starts"),
        ({"sites": "cross"}, KeyError, "cross"),
        ({"per": "token"}, ValueError, "batch"),
        ({"batches": []}, ValueError, "ran out after 0"),
        ({"batches": ["words"]}, TypeError, "got a str as batch 0"),
        ({"loss": lambda outputs, batch: loss(outputs, batch)[:2]}, ValueError, "one number per example"),
        ({"loss": lambda outputs, batch: 1.0}, TypeError, "expected a tensor"),
    ],
)
def test_bad_arguments(batches, options, error, message):
    with pytest.raises(error, match=message):
        fit(**{"batches": batches} | options)


def test_batches_without_labels(batches):
    model, batch = zoo_model("bert")
    with pytest.raises(TypeError, match="labels"):
        fit_gates(model, [batch], 0.1, weights=None, progress=False)


def test_an_iterator_that_runs_out(batches):
    with pytest.raises(ValueError, match="ran out after 3"):
        fit(iter(batches))
