"""fit_gates and recover: they find the heads a loss needs, leave the model as it is, and go on after a stop."""

import copy
import warnings

import peft
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import headtools as ht
from headtools.sparse import _trainer
from headtools.sparse.fit_gates import fit_gates, recover

from ..heads.reference import state, untouched
from ..heads.zoo import error, fresh, run, zoo_model

NEEDED = [("encoder", 0, 1), ("encoder", 1, 2), ("encoder", 2, 0)]


def loss(outputs, batch):
    """Per example: how far the model's answer is from the wanted one."""
    return (outputs.logits - batch["wanted"]).square().mean((1, 2))


def nothing(outputs, batch):
    """A loss that no gate changes, but that depends on all."""
    return loss(outputs, batch) * 0


@pytest.fixture(scope="module")
def batches():
    """Batches for ``loss``; wanted is what the model gives with three of its twelve heads alone."""
    model, batch = zoo_model("bert")
    others = [(*site.key, h) for site in ht.sites(model) for h in range(4) if (*site.key, h) not in NEEDED]
    some = [{key: value.roll(i, 0) for key, value in batch.items()} for i in range(3)]
    with ht.ablate(model, others):
        return [one | {"wanted": run(model, one)} for one in some]


def fit(batches, penalty=0.02, model=None, **options):
    options = {"loss": loss, "weights": None, "steps": 8, "progress": False} | options
    return fit_gates(model or zoo_model("bert")[0], batches, penalty, **options)


def same(one, other):
    """Bit for bit the same course and the same weights."""
    assert one.history.equals(other.history)
    assert one.losses.equals(other.losses)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def changed(before, after):
    """Names of the parameters that are others now."""
    after = dict(after.named_parameters())
    return {name for name, parameter in before.named_parameters() if not torch.equal(parameter, after[name])}


# --- what is found ----------------------------------------------------------------------------------------------------


def test_the_heads_that_the_loss_needs_stay_open_and_the_others_can_be_cut():
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_attention_heads": 8, "num_hidden_layers": 1, "intermediate_size": 16}
    config = BertConfig(**shape, vocab_size=40, initializer_range=0.3)
    model, ids = BertForMaskedLM(config).eval(), torch.randint(0, 40, (8, 6))
    batch, needed = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, [("encoder", 0, 1), ("encoder", 0, 4)]
    with ht.ablate(model, {("encoder", 0): [0, 2, 3, 5, 6, 7]}):
        wanted = run(model, batch)
    found = fit([batch | {"wanted": wanted}], 0.5, model, steps=150, per="example")
    assert found.open_heads == needed
    assert set(found.scores.top(2)) == set(needed)
    assert sorted([*found.open_heads, *found.closed_heads]) == sorted(found.gates.heads)
    assert found.losses.loss.iloc[-1] < 0.2 * found.losses.loss.iloc[0]
    assert found.losses.open.iloc[0] == 8
    assert found.losses.l0.iloc[0] == pytest.approx(8 * found.gates.p_open(torch.tensor(2.2)).item())
    assert (found.history.iloc[0] == found.history["encoder", 0, 1].iloc[0]).all()
    last = torch.tensor([found.history[head].iloc[-1] for head in found.gates.heads])
    torch.testing.assert_close(last, found.gates.log_alpha.detach().double(), check_dtype=False)
    cut = found.cut()
    assert ht.sites(cut).n_heads == 2
    with ht.gates(model, found.values()):
        torch.testing.assert_close(run(cut, batch), run(model, batch), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(run(cut, batch), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("per", ["batch", "example"])
def test_no_penalty_opens_all_and_a_large_one_closes_all(batches, per):
    free, dear = (fit(batches, penalty, per=per, seed=3, loss=nothing, steps=60) for penalty in (0.0, 5.0))
    assert len(free.open_heads) == 12
    assert ht.pruned(free.cut()) == []
    assert (free.history.values == free.history.values[0]).all()
    assert dear.open_heads == []
    assert ht.sites(dear.cut()).n_heads == 0


def test_a_loss_of_one_number_is_a_mean_and_bfloat16_is_told_in_single_precision(batches):
    one, mean = fit(batches), fit(batches, loss=lambda outputs, batch: loss(outputs, batch).mean())
    assert (one.history - mean.history).abs().max().max() < 1e-5
    model = copy.deepcopy(zoo_model("bert")[0]).to(torch.bfloat16)
    found = fit(batches, model=model, steps=2)
    assert found.losses.loss.dtype == "float32"
    assert found.losses.loss.iloc[0] == pytest.approx(one.losses.loss.iloc[0], rel=0.05)
    assert recover(model, batches, loss=loss, steps=1, progress=False).dtype == torch.bfloat16


def test_rates_fall_at_the_end(batches):
    """Under a steady push Adam moves by the learning rate, whatever the gradient's size."""
    found = fit(batches, 5.0, loss=nothing, steps=10, decay=0.5, gate_rate=0.01)
    moved = -torch.tensor(found.history.values).diff(dim=0).mean(1)
    torch.testing.assert_close(moved, torch.tensor([1.0] * 6 + [0.8, 0.6, 0.4, 0.2]) * 0.01, rtol=0.05, atol=0)


def test_a_seed_decides_everything(batches):
    before = torch.get_rng_state()
    same(fit(batches, seed=5), fit(batches, seed=5))
    assert torch.equal(before, torch.get_rng_state())
    assert not fit(batches, seed=5).history.equals(fit(batches, seed=6).history)


# --- what learns, and what the model looks like afterwards ------------------------------------------------------------


def test_a_frozen_decoder_and_what_it_shares_stay():
    model, batch = fresh("marian")
    labelled = [batch | {"labels": batch["decoder_input_ids"]}]
    model.train()
    gradient = next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    model.lm_head.weight.requires_grad_(False)

    def learnt(model, **options):
        with untouched(model):
            found = fit_gates(model, labelled, 0.1, steps=2, progress=False, **options)
        assert found.model.training
        assert [p.requires_grad for p in found.model.parameters()] == [p.requires_grad for p in model.parameters()]
        return found, changed(model, found.model)

    found, names = learnt(model, sites="encoder", weights="encoder")
    assert set(found.history.columns.get_level_values("kind")) == {"encoder"}
    assert any("encoder.layers" in name for name in names)
    assert all("encoder.layers" in name or "encoder.layer_norm" in name for name in names)
    _, names = learnt(model)
    assert any("decoder.layers" in name for name in names)
    assert not any("shared" in name or "embed_tokens" in name for name in names), "these are frozen"
    _, names = learnt(model, weights=["model.decoder.layers.1."])
    assert names
    assert all(name.startswith("model.decoder.layers.1.") for name in names)
    assert torch.equal(next(model.parameters()).grad, gradient)
    model.lm_head.weight.requires_grad_(True)
    assert any("shared" in name or "embed_tokens" in name for name in learnt(model)[1])


@pytest.mark.parametrize("weights", ["all", None])
def test_an_exception_leaves_the_model_whole(batches, weights):
    model, calls = fresh("bert")[0], []
    model.train()

    def breaks(outputs, batch):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("out of memory, say")
        return loss(outputs, batch)

    with untouched(model), pytest.raises(RuntimeError, match="out of memory"):
        fit(batches, model=model, weights=weights, loss=breaks)
    with untouched(model), pytest.raises(FloatingPointError, match="nan at step 0"):
        fit(batches, model=model, weights=weights, loss=lambda outputs, batch: loss(outputs, batch) * float("nan"))
    with untouched(model):
        assert (fit(batches, model=model, weights=weights).model is model) == (weights is None)


LEARN = {
    "fit_gates": lambda model, batches, **options: (
        fit_gates(model, batches, 0.1, **{"steps": 2, "progress": False} | options).model
    ),
    "recover": lambda model, batches, **options: recover(model, batches, **{"steps": 2, "progress": False} | options),
}


@pytest.fixture
def bert():
    model, batch = fresh("bert")
    return model, [batch | {"labels": batch["input_ids"]}]


@pytest.mark.parametrize("learn", LEARN.values(), ids=LEARN)
def test_frozen_weights_stay_frozen_as_the_base_under_adapters(bert, learn):
    model, batches = bert
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.2" in name)
    names = changed(model, learn(model, batches))
    assert names
    assert all("layer.2" in name for name in names)
    model.requires_grad_(True)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["query", "value"], r=2, init_lora_weights=False)
    )
    before = state(adapted)
    names = changed(adapted, learn(adapted, batches))
    assert names
    assert all("lora_" in name for name in names)
    assert state(adapted)["needs_grad"] == before["needs_grad"]


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("learn", LEARN.values(), ids=LEARN)
def test_gradients_are_on_whatever_is_around(bert, learn, off):
    model, batches = bert
    with off():
        inside = learn(model, batches)
    assert not changed(inside, learn(model, batches))
    assert changed(inside, model)


def checkpointing(model, reentrant):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the name of this method changes with transformers
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


def test_under_checkpointing_all_is_the_same_or_refused(bert):
    model, batches = bert
    plain = {name: learn(model, batches) for name, learn in LEARN.items()}
    checkpointing(model, True)
    line = r'gradient_checkpointing_enable\(gradient_checkpointing_kwargs=\{"use_reentrant": False\}\)'
    for learn in LEARN.values():
        with untouched(model), pytest.raises(ValueError, match=line):
            learn(model, batches)
    LEARN["fit_gates"](model, batches, weights=None)  # no layer checkpoints in eval mode
    checkpointing(model, False)
    for name, learn in LEARN.items():
        assert max(map(error, learn(model, batches).parameters(), plain[name].parameters())) < 1e-5


@pytest.mark.parametrize("weights", [None, "all"])
def test_a_loss_that_does_not_reach_the_gates_is_refused(bert, weights):
    model, batches = bert
    with untouched(model), pytest.raises(ValueError, match="does not depend on any gate"):
        fit_gates(model, batches, 0.1, loss=lambda outputs, _: outputs.loss.detach(), weights=weights, progress=False)


# --- stopping and going on --------------------------------------------------------------------------------------------

RUN = {"weights": "all", "steps": 8, "seed": 2}


def stops(batches, at, error=KeyboardInterrupt):
    """Batches that raise at a step."""

    def batch(step):
        if step == at:
            raise error
        return batches[step % 3]

    return batch


@pytest.fixture(autouse=True)
def saved_often(monkeypatch):
    monkeypatch.setattr(_trainer, "SAVE_EVERY", 3)


@pytest.mark.parametrize("at", [1, 3, 7])
def test_stopped_and_resumed_ends_the_same(batches, tmp_path, at):
    straight = fit(batches, **RUN)
    with pytest.raises(KeyboardInterrupt):
        fit(stops(batches, at), checkpoint=tmp_path, **RUN)
    assert (tmp_path / _trainer.FILE).exists() == (at >= 3)
    same(fit(batches, checkpoint=tmp_path, **RUN), straight)
    same(fit(stops(batches, 0), checkpoint=tmp_path, **RUN), straight)  # a finished run asks for no batch


def test_another_run_or_a_damaged_file_is_refused(batches, tmp_path):
    fit(batches, checkpoint=tmp_path)
    model, _ = fresh("bert")
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    weights = "weights at the start"
    changes = (
        ({"penalty": 0.5}, "penalty"),
        ({"seed": 1}, "seed"),
        ({"start": 1.0}, weights),
        ({"model": model}, weights),
    )
    for change, name in changes:
        with pytest.raises(ValueError, match=f"another run.*{name}"):
            fit(batches, checkpoint=tmp_path, **change)
    file = tmp_path / _trainer.FILE
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"is damaged .*: delete it, and the run starts anew"):
        fit(batches, checkpoint=tmp_path)


def test_recovery(batches, tmp_path):
    model, _ = fresh("bert")
    ht.prune(model, [("encoder", 0, 1)])

    def distance(student):
        with torch.no_grad():
            return sum(loss(student(**batch), batch).mean().item() for batch in batches)

    with untouched(model):
        better = recover(model, batches, steps=30, loss=loss, rate=1e-3, progress=False)
    assert ht.pruned(better) == [("encoder", 0, 1)]
    assert distance(better) < 0.9 * distance(model)
    options = {"steps": 6, "loss": loss, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        recover(model, stops(batches, 4), checkpoint=tmp_path, **options)
    assert not changed(recover(model, batches, checkpoint=tmp_path, **options), recover(model, batches, **options))
