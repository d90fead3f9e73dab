"""A weight that is NaN is named by whatever measures the model, and never averaged away."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import headtools as ht
from headtools.geometry.circuits import ov, qk
from headtools.heads._checks import check_recorded, check_weights, nonfinite_weights
from headtools.roles import induction
from headtools.roles.word_states import word_states
from headtools.sparse.merge import head_similarity
from headtools.sparse.pruning_curve import curve

from .zoo import fresh

NAN = float("nan")
HURT = r"the weights .*layer\.1\.attention\.self\.query\.weight hold NaN"
PAIR = [(("encoder", 0, 0), ("encoder", 2, 1))]


def bert(value=NAN):
    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=3, intermediate_size=8, vocab_size=29)
    model = BertForMaskedLM(config).eval()
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[9, 5] = value  # a feature of head 2
    return model


def batch():
    ids = torch.randint(3, 29, (6, 5), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


MEASURES = {
    "confidence": lambda model: ht.confidence(model, batch()),
    "gradient": lambda model: ht.gradient(model, batch()),
    "ablation": lambda model: ht.ablation(model, batch()),
    "ablation by mean": lambda model: ht.ablation(model, batch(), replacement="mean"),
    "interaction": lambda model: ht.interaction(model, batch(), PAIR),
    "relevance": lambda model: ht.relevance(model, batch()),
    "relevance by cp": lambda model: ht.relevance(model, batch(), rules="cp"),
    "head_similarity": lambda model: head_similarity(model, batch(), sites=["encoder"]),
    "curve": lambda model: curve(model, PAIR[0], lambda m: m(**batch()).logits.amax((1, 2)), keep=[2]),
    "fit_gates": lambda model: ht.fit_gates(model, [batch()], penalty=0.1, steps=2),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_of_a_batch_names_the_weight(measure):
    with pytest.raises((ValueError, FloatingPointError), match=HURT):
        MEASURES[measure](bert())


def test_an_infinite_weight_is_named_too():
    with pytest.raises(ValueError, match=HURT.replace("NaN", "infinity")):
        ht.confidence(bert(float("inf")), batch())


def test_fused_attention_hides_it_and_is_not_believed():
    """torch gives zeros for a query that is NaN: the loss is a number, and so was the head's importance."""
    model = bert()
    model.set_attn_implementation("sdpa")
    assert model(**batch()).loss.isfinite()
    with pytest.raises(ValueError, match=f"BertForMaskedLM cannot be measured: {HURT}; load it again"):
        ht.ablation(model, batch())


def recorded(model, want):
    """Fold what is recorded, as measures do."""
    with torch.no_grad(), ht.record(model, want, accumulate=lambda *_: 0):
        model(**batch())


def test_what_is_seen_is_named_where_it_is_seen():
    """The layer at which it is seen first, and those of its heads that have it."""
    with pytest.raises(ValueError, match=rf"encoder 1, head 2: attention weights are NaN or infinite; {HURT}"):
        recorded(bert(), "maps")
    with pytest.raises(ValueError, match=rf"encoder 1, head 2: queries are NaN or infinite; {HURT}"):
        recorded(bert(), ["z", "q"])
    model = bert(1.0)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.value.bias[3] = NAN
    with pytest.raises(ValueError, match="encoder 2, all heads: attention weights are NaN"):
        recorded(model, "maps")
    with pytest.raises(ValueError, match="encoder 1, head 0: outputs z are NaN"):
        recorded(model, "z")
    model, _ = fresh("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[8, 3] = NAN  # the second key, which three heads share
    with pytest.raises(ValueError, match=r"decoder 1, heads \[3, 4, 5\]: keys are NaN"):
        recorded(model, "k")
    for measure in (induction.induction_scores, induction.copying):
        with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.k_proj\.weight hold NaN"):
            measure(model, n=5, length=6)


def test_other_causes_are_told_apart():
    model = bert(1.0)
    hurt = model.get_input_embeddings()(torch.tensor([[3, 4, 5]])).detach().index_fill(1, torch.tensor([1]), NAN)
    with pytest.raises(ValueError, match="no weight of the model is NaN or infinite, so check the batch"):
        ht.confidence(model, {"inputs_embeds": hurt}, exclude=[])
    site = ht.sites(model)["encoder", 0]
    check_recorded(model, site, "z", torch.full((2, 3, 4, 4), 6e4).half())  # only the sum overflows
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.key.weight[:2, 0] = 3e38
    check_weights(model)
    assert nonfinite_weights(model) == ""


def test_circuits_name_the_head():
    with pytest.raises(ValueError, match=r"\(encoder 1\): W_QK is not a number in head 2, because its weights hold"):
        qk(bert())
    assert len(ov(bert())) == 12  # what does not depend on it is as right as ever


@pytest.mark.parametrize("use", ["taxonomy", "word_states"])
def test_roles_and_probes_name_the_weight(use):
    model, tokenizer = ht.load()
    model = copy.deepcopy(model)
    site = ht.sites(model)["encoder", 3]
    with torch.no_grad():
        site.q.module.weight[site.q.rows[5, 0], 0] = NAN
    test, validation = (ht.corpus("organism", split, limit=12) for split in ("test", "validation"))
    measure = {
        "taxonomy": lambda: ht.taxonomy(model, tokenizer, test, validation, times=20),
        "word_states": lambda: word_states(model, tokenizer, test, ["head"]),
    }[use]
    with pytest.raises(ValueError, match=r"layers\.3\.self_attn\.q_proj\.weight hold NaN"):
        measure()
