"""Circuits that are written are what they are said to be; a gradient does not see them, and its secant does."""

import warnings

import pytest
import torch

import headtools as ht
from headtools.importance._softmax import secant
from headtools.organism.shipped import shipped
from headtools.organism.written_models import WrittenModel
from recipes.truth import CHANCE, CIRCUITS, batch_of, cell, induction, removal


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_circuit_is_sufficient_and_necessary(name):
    found = removal(CIRCUITS[name]())
    assert found["without_others"] < min(0.3, found["full"] + 0.01)
    assert found["without"] > CHANCE - 0.4  # decoys still write a little
    alone = found["without_one"]
    assert alone < 0.01 if name == "either of two" else alone > CHANCE - 0.4


def test_the_gradient_does_not_see_a_saturated_head_and_says_so():
    model, batch = induction(100.0).model, batch_of("repeats", 0)
    with pytest.warns(UserWarning, match=r"decoder 1\.0 is saturated.*decoder 0\.0"):
        blind = ht.gradient(model, batch, "aligned")
    assert blind["decoder", 0, 0] < 1e-6 < blind["decoder", 0, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seeing = ht.gradient(model, batch, "aligned", softmax="secant")
    assert seeing.top(2)[0] == ("decoder", 0, 0)
    assert set(seeing.top(2)) == {("decoder", 0, 0), ("decoder", 1, 0)}


def test_a_soft_head_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ht.gradient(induction(3.0).model, batch_of("repeats", 0), "aligned")


@pytest.mark.parametrize("name", ["organism", "organism2"])
def test_trained_heads_give_no_warning(name):
    """Nor do the models of the zoo, whose gradients are taken where every warning is an error."""
    model, tokenizer = ht.load(name)
    ht.gradient(model, ht.label(model, tokenizer, ht.corpus(name, limit=64)))


@pytest.mark.parametrize("gain", [0.0, 1e-6, 1.0, 30.0, 1000.0])
def test_the_secant_is_exact_from_equal_scores(gain):
    """Its definition as a matrix, and J scores = softmax - uniform; a masked key has no part in it."""
    scores = gain * torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    masked = torch.cat([scores, torch.tensor([-torch.inf, -1e9], dtype=torch.double)])
    found = torch.stack([secant(masked, row) for row in torch.eye(7, dtype=torch.double)])
    assert not found[:, 5:].any()
    p, u = scores.softmax(0), torch.full((5,), 0.2, dtype=torch.double)
    torch.testing.assert_close(found[:5, :5] @ scores, p - u, atol=1e-9, rtol=1e-6)
    log_ratio = scores.log_softmax(0) - u.log()
    m = torch.where(log_ratio.abs() < 1e-4, u, (p - u) / log_ratio)
    torch.testing.assert_close(found[:5, :5], torch.diag(m) - torch.outer(m, m) / m.sum(), atol=1e-4, rtol=1e-4)


def test_fused_attention_has_the_same_secant():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=30, hidden_size=32, intermediate_size=16, num_hidden_layers=2)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 8
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(30, (3, 9))
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 500  # so sharp that slope and secant differ
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    batch, found = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}, []
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        found.append(ht.gradient(model, batch, softmax="secant").flat())
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(found[0], ht.gradient(model, batch).flat(), rtol=1e-3)


@pytest.mark.parametrize("measure", ["gradient", "gradient by secant"])
def test_cells_of_the_shipped_table(measure):
    row = shipped("truth").query("circuit == 'induction, saturated' and seed == 0 and measure == @measure").iloc[0]
    again = cell("induction, saturated", measure, 0)
    assert (row.auroc, row.cpr, row.cmd) == pytest.approx((again["auroc"], again["cpr"], again["cmd"]), abs=1e-3)


def test_the_page_tells_what_was_measured_in_compiled_models(root):
    """A compiler's circuit, whose truth is removal: the table of the page is that of the results."""
    circuits, runs = shipped("compiled circuits").set_index("circuit"), shipped("compiled truth")
    assert (circuits.without - circuits.full > 0.5).all()
    assert ((circuits.without_others - circuits.full).abs() < 0.01).all()
    assert (circuits.without_one - circuits.full > 0.1).all()
    page = (root / "notebooks" / "truth.md").read_text("utf-8").split("## The same in a model")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    assert {row[0] for row in rows[2:]} == set(runs.measure)
    mean = runs.groupby(["measure", "circuit"]).mean(numeric_only=True)
    for measure, *told in rows[2:]:
        soft, sharp, sharper = (mean.loc[(measure, f"induction{more}")] for more in (", soft", "", ", sharp"))
        assert [float(x) for x in told[:2]] == pytest.approx([soft.auroc, sharp.auroc], abs=0.006)
        assert [float(x) for x in told[2:]] == pytest.approx([sharp.lowest, sharp.highest_other], rel=0.05, abs=5e-5)
        assert (sharp.auroc, sharp.lowest) == pytest.approx((sharper.auroc, sharper.lowest), rel=0.01)
    gradient = runs.query("measure == 'gradient' and circuit == 'induction'")
    assert (gradient.highest_other / gradient.lowest > 1e24).all()


def test_the_page_tells_what_other_packages_found(root):
    """And where a peer computes what we have, its numbers are ours."""
    runs = shipped("truth of peers")
    assert (runs.distance.dropna() < 1e-6).all()
    assert runs.groupby("measure").distance.count().gt(0).sum() == 5
    page = (
        (root / "notebooks" / "truth.md").read_text("utf-8").split("## What other packages find")[1].split("\n## ")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == list(dict.fromkeys(runs.measure))
    for measure, passes, found, mean, lowest, distance in rows[2:]:
        own = runs[runs.measure == measure]
        by_circuit = own.groupby("circuit", sort=False).auroc.mean()
        by_seed = own.groupby("seed").auroc.mean()
        assert passes == own.cost.iloc[0]
        assert int(found) == (by_circuit > 0.99999).sum()
        assert mean == f"{by_seed.mean():.3f} ({by_seed.min():.3f} to {by_seed.max():.3f})"
        assert lowest == "-" if int(found) == 12 else lowest == f"{by_circuit.idxmin()} {by_circuit.min():.2f}"
        assert distance == ("-" if own.distance.isna().all() else f"{own.distance.max():.0e}")


def test_an_unwritten_model_predicts_nothing():
    logits = WrittenModel(1)(torch.tensor([[0, 3, 4]])).logits
    assert not logits.any()
