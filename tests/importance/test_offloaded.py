"""Models whose weights lie elsewhere (``device_map``), and models in bfloat16: the same numbers, or a refusal."""

import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.geometry.circuits import ov, qk

from ..heads.zoo import fresh, zoo_model

pytestmark = pytest.mark.full  # what accelerate does with weights: changes with its versions

HOW = ["hooks", "cpu", "disk", "mixed"]
NAMES = ["bert", "gpt2", "marian"]


def placed(name, how, folder):
    """A copy of a model, put where `how` says by accelerate, and its batch."""
    accelerate = pytest.importorskip("accelerate")
    model, batch = fresh(name)
    model.eval()
    cpu = torch.device("cpu")
    if how == "hooks":
        return accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True), batch
    if how == "cpu":
        return accelerate.cpu_offload(model, cpu), batch
    if how == "disk":
        return accelerate.disk_offload(model, folder, cpu), batch
    last = ht.sites(model).all[-1].name
    held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    owners = dict.fromkeys(name.rpartition(".")[0] for name, _ in held)
    where = {owner: "disk" if owner.startswith(last) else "cpu" for owner in owners}
    return accelerate.dispatch_model(model, where, main_device="cpu", offload_dir=folder), batch


def labelled(batch):
    return {**batch, "labels": batch.get("decoder_input_ids", batch["input_ids"])}


def weights(model):
    return {name: (weight.requires_grad, weight.device.type) for name, weight in model.named_parameters()}


@pytest.mark.parametrize("placement", HOW)
@pytest.mark.parametrize("name", NAMES)
def test_what_reads_no_weights_gives_the_same_numbers(name, placement, tmp_path):
    plain, batch = zoo_model(name)
    model, _ = placed(name, placement, tmp_path)
    assert any(weight.is_meta for weight in model.parameters()) == (placement != "hooks")
    before, given = weights(model), labelled(batch)
    key = ht.sites(plain).all[-1].key
    with torch.no_grad(), ht.record(model) as seen, ht.record(plain) as wanted:
        model(**batch), plain(**batch)
    assert torch.equal(seen[key].maps, wanted[key].maps)
    assert torch.equal(seen[key].z, wanted[key].z)
    gate = {key: torch.full((ht.sites(plain)[key].heads,), 0.5)}
    with torch.no_grad(), ht.gates(model, gate), ht.gates(plain, gate):
        assert torch.equal(model(**batch).logits, plain(**batch).logits)
    for measure, more in (
        (ht.gradient, {}),
        (ht.ablation, {"progress": False}),
        (ht.ablation, {"replacement": "mean", "progress": False}),
        (ht.ablation, {"replacement": "uniform", "progress": False}),
        (ht.confidence, {}),
    ):
        found, wanted = (measure(one, given, **more) for one in (model, plain))
        assert torch.allclose(found.flat(), wanted.flat(), atol=1e-6), (measure.__name__, more)
    assert weights(model) == before, "offloaded again, and as ready to be trained as before"


def test_sentences_find_their_way_to_weights_that_are_elsewhere():
    accelerate = pytest.importorskip("accelerate")
    (model, tokenizer), sentences = ht.load(), ht.corpus("organism", limit=6)
    texts = [sentence.words for sentence in sentences]  # without a translation: the model has to write it
    roles, labels = ht.taxonomy(model, tokenizer, sentences, times=20), ht.label(model, tokenizer, texts)
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert model.device.type == "meta"
    pd.testing.assert_frame_equal(ht.taxonomy(model, tokenizer, sentences, times=20), roles)
    assert torch.equal(ht.label(model, tokenizer, texts)[0]["labels"], labels[0]["labels"])


@pytest.mark.parametrize("placement", ["cpu", "disk"])
def test_what_reads_weights_refuses_those_that_are_not_there(placement, tmp_path):
    model, batch = placed("bert", placement, tmp_path)
    heads = [("encoder", 0, 1), ("encoder", 0, 2)]
    for work in (
        lambda: ht.relevance(model, labelled(batch)),
        lambda: ht.prune(model, heads),
        lambda: ov(model),
        lambda: qk(model),
        lambda: ht.merge(model, [heads], labelled(batch)),
        lambda: ht.edit(model, heads[0], remove=torch.ones(1)).__enter__(),
    ):
        with pytest.raises(ValueError, match=r"offloaded.*device_map=None"):
            work()
