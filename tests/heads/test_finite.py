"""A weight that is NaN is named, with its layer and head, by whatever measures the model."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import headtools as ht
from headtools.geometry.circuits import ov, qk
from headtools.geometry.composition import composition
from headtools.geometry.composition import copying as ov_copying
from headtools.geometry.subspaces import effective_rank
from headtools.heads._finite import check_recorded, check_weights, nonfinite_weights
from headtools.roles import induction
from headtools.roles.attention_probe import attention_probe
from headtools.roles.probing import probe
from headtools.roles.word_states import word_states
from headtools.sparse.head_similarity import head_similarity
from headtools.sparse.pruning_curve import curve

NAN = float("nan")
HURT = r"the weights of encoder 1, head 2, hold NaN \(.*layer\.1\.attention\.self\.query\.weight\)"


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


def pairs():
    return [(("encoder", 0, 0), ("encoder", 2, 1))]


MEASURES = {
    "confidence": lambda model: ht.confidence(model, batch()),
    "gradient": lambda model: ht.gradient(model, batch()),
    "gradient by position": lambda model: ht.gradient(model, batch(), per="position"),
    "ablation": lambda model: ht.ablation(model, batch(), progress=False),
    "ablation of the head": lambda model: ht.ablation(model, batch(), sites=[("encoder", 1)], progress=False),
    "ablation by mean": lambda model: ht.ablation(model, batch(), replacement="mean", progress=False),
    "ablation by resample": lambda model: ht.ablation(model, batch(), replacement="resample", progress=False),
    "interaction": lambda model: ht.interaction(model, batch(), pairs(), progress=False),
    "relevance": lambda model: ht.relevance(model, batch()),
    "relevance by cp": lambda model: ht.relevance(model, batch(), rules="cp"),
    "propagate": lambda model: ht.propagate(model, batch()),
    "head_similarity": lambda model: head_similarity(model, batch(), sites=["encoder"]),
    "curve": lambda model: curve(
        model, [("encoder", 0, 0), ("encoder", 2, 1)], lambda m: m(**batch()).logits.amax((1, 2)), keep=[2]
    ),
    "fit_gates": lambda model: ht.fit_gates(model, [batch()], penalty=0.1, steps=2, progress=False),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_of_a_batch_names_layer_and_head(measure):
    with pytest.raises((ValueError, FloatingPointError), match=HURT):
        MEASURES[measure](bert())


def test_an_infinite_weight_is_named_too():
    with pytest.raises(ValueError, match=HURT.replace("NaN", "infinity")):
        ht.confidence(bert(float("inf")), batch())


def recorded(model, want, **given):
    """Fold what is recorded, as measures do."""
    with torch.no_grad(), ht.record(model, want, accumulate=lambda *_: 0):
        model(**(given or batch()))


def test_what_is_seen_is_named_where_it_is_seen():
    """The layer at which it is seen first, and those of its heads that have it."""
    with pytest.raises(ValueError, match=rf"encoder 1, head 2: attention weights are NaN or infinite; {HURT}"):
        recorded(bert(), "maps")
    with pytest.raises(ValueError, match=rf"encoder 1, head 2: queries are NaN or infinite; {HURT}"):
        recorded(bert(), ["z", "q"])
    model = bert(1.0)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.value.bias[3] = NAN
    own = r"the weights of encoder 1, head 0, hold NaN \(bert\.encoder\.layer\.1\.attention\.self\.value\.bias\)"
    with pytest.raises(ValueError, match=rf"encoder 2, all heads: attention weights are NaN or infinite; {own}"):
        recorded(model, "maps")
    with pytest.raises(ValueError, match=rf"encoder 1, head 0: outputs z are NaN or infinite; {own}"):
        recorded(model, "z")
    own = r"\(encoder 1\): W_OV is not a number in head 0, because its weights hold NaN"
    with pytest.raises(ValueError, match=own):
        ov(model, bias=True)
    assert len(ov(model)) == 12


def test_fused_attention_hides_it_and_is_not_believed():
    """torch gives zeros for a query that is NaN: the loss is a number, and so was the head's importance."""
    model = bert()
    model.set_attn_implementation("sdpa")
    assert model(**batch()).loss.isfinite()
    with pytest.raises(ValueError, match=f"BertForMaskedLM cannot be measured: {HURT}; load it again"):
        ht.ablation(model, batch(), progress=False)


def test_other_weights_and_other_causes_are_told_apart():
    model = bert(1.0)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7] = NAN
    ids = torch.tensor([[3, 7, 5]])
    table = r"the weights bert\.embeddings\.word_embeddings\.weight(, \S+)? hold NaN"
    with pytest.raises(ValueError, match=rf"encoder 0, all heads: .*{table}"):
        ht.confidence(model, {"input_ids": ids})
    for measure in (ht.gradient, ht.ablation):
        with pytest.raises(ValueError, match=rf"the loss of examples \[0\] is NaN .*{table}"):
            measure(model, {"input_ids": ids, "labels": ids})
    with pytest.raises(ValueError, match=rf"the score of examples \[0\] is NaN .*{table}"):
        ht.relevance(model, {"input_ids": ids})
    model = bert(1.0)
    hurt = model.get_input_embeddings()(torch.tensor([[3, 4, 5]])).detach().index_fill(1, torch.tensor([1]), NAN)
    with pytest.raises(ValueError, match="no weight of the model is NaN or infinite, so check the batch"):
        ht.confidence(model, {"inputs_embeds": hurt}, exclude=[])
    check_recorded(model, ht.sites(model)["encoder", 0], "z", torch.full((2, 3, 4, 4), 6e4).half())
    check_recorded(model, ht.sites(model)["encoder", 0], "z", torch.full((2, 3, 4, 4), 3e38))
    assert nonfinite_weights(model) == ""


def test_a_weight_whose_sum_overflows_is_no_matter():
    model = bert(1.0)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.key.weight[:2, 0] = 3e38
    check_weights(model)


def test_what_does_not_depend_on_it_is_as_right_as_ever():
    assert torch.equal(effective_rank(ov(bert())).flat(), effective_rank(ov(bert(1.0))).flat())
    model = bert()
    with torch.no_grad(), ht.record(model) as shown:  # the tensors themselves are shown as they are
        model(**batch())
    assert shown["encoder", 1].maps[:, 2].isnan().all()
    assert shown["encoder", 1].maps[:, [0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_fused_and_shared_projections_are_told_head_by_head(name):
    torch.manual_seed(0)
    if name == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=4, n_layer=2, n_positions=64, vocab_size=29)).eval()
        weight = model.transformer.h[1].attn.c_attn.weight
        place, heads = (3, 16 + 5), r"head 1"  # the key of the second head
    else:
        config = LlamaConfig(
            hidden_size=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=2,
            intermediate_size=8,
            vocab_size=29,
        )
        model = LlamaForCausalLM(config).eval()
        weight = model.model.layers[1].self_attn.k_proj.weight
        place, heads = (5, 3), r"heads \[2, 3\]"  # the second key, which two heads share
    with torch.no_grad():
        weight[place] = NAN
    own = rf"the weights of decoder 1, {heads}, hold NaN"
    with pytest.raises(ValueError, match=rf"decoder 1, {heads}: attention weights are NaN or infinite; {own}"):
        recorded(model, "maps")
    with pytest.raises(ValueError, match=rf"decoder 1, {heads}: keys are NaN or infinite; {own}"):
        recorded(model, "k")
    for measure in (ht.confidence, ht.gradient):
        with pytest.raises(ValueError, match=own):
            measure(model, batch())
    for measure in (induction.induction_scores, induction.copying):
        with pytest.raises(ValueError, match=own):
            measure(model, n=5, length=6)
    with torch.no_grad():
        weight[place] = 0.5
        if name == "gpt2":
            model.transformer.h[0].attn.c_attn.weight[3, 32] = NAN
        else:
            model.model.layers[0].self_attn.v_proj.weight[0, 3] = NAN
    with pytest.raises(ValueError, match=r"decoder 0.*W_OV is not a number in (head 0|heads \[0, 1\]),"):
        effective_rank(ov(model))


def test_copying_names_the_tables():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_head=4, n_layer=1, n_positions=64, vocab_size=29, tie_word_embeddings=False)
    ).eval()
    with torch.no_grad():
        model.lm_head.weight[:, 2] = NAN
    with pytest.raises(
        ValueError, match=r"the unembedding holds NaN or infinity.*the weights lm_head\.weight hold NaN"
    ):
        induction.copying(model, n=5, length=6)
    circuits = ov(model)
    with pytest.raises(ValueError, match="the tables hold NaN or infinity"):
        ov_copying(circuits, model.get_input_embeddings().weight, model.lm_head.weight)


def test_composition_names_the_site():
    with pytest.raises(
        ValueError, match=r"\(encoder 1\): W_QK is not a number in head 2, because its weights hold NaN"
    ):
        composition(ht.sites(bert())["encoder", 0], ht.sites(bert())["encoder", 1])
    with pytest.raises(ValueError, match=r"\(encoder 1\): W_QK is not a number in head 2"):
        qk(bert())


@pytest.fixture(scope="module")
def broken_organism():
    model, tokenizer = ht.load()
    model = copy.deepcopy(model)
    site = ht.sites(model)["encoder", 3]
    with torch.no_grad():
        site.q.module.weight[site.q.rows[5, 0], 0] = NAN
    few = [ht.corpus("organism", split, limit=12) for split in ("validation", "test")]
    return model, tokenizer, *few


@pytest.mark.parametrize("roles", [None, ["positional", "syntactic"], ["content"], ["confidence"], ["map"]])
def test_taxonomy_names_layer_and_head(broken_organism, roles):
    """All roles once ended in an index error; positional ones in scores of 0.0 with the interval [0, 0]."""
    model, tokenizer, validation, test = broken_organism
    with pytest.raises(
        ValueError, match=r"encoder 3, head 5: attention weights are NaN.*of encoder 3, head 5, hold NaN"
    ):
        ht.taxonomy(model, tokenizer, test, validation, roles=roles, times=20)


PROBES = {
    "word states": lambda *given: word_states(*given[:2], given[2], ["head"]),
    "residual": lambda *given: word_states(*given[:2], given[2], ["residual"]),
    "probe of heads": lambda *given: probe(*given, "upos", component=["head"], solver="discriminant"),
    "probe of the stream": lambda *given: probe(*given, "upos", component=["residual"], solver="discriminant"),
    "probe of attention": lambda *given: attention_probe(*given, untrained=False),
}


@pytest.mark.parametrize("name", PROBES)
def test_probes_name_layer_and_head(broken_organism, name):
    with pytest.raises(ValueError, match="the weights of encoder 3, head 5, hold NaN"):
        PROBES[name](*broken_organism)
