"""What headtools takes a model's heads to be is tried: it holds for the zoo, and each check can fail."""

import dataclasses
import threading

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads import sites as sites_module
from headtools.heads import verify as verify_module
from headtools.heads.verify import CHECKS, Verification, _keep, verify_once
from recipes.families import batch_of, build

from .reference import untouched
from .zoo import BUILDERS, fresh, zoo_model

# Latent attention has no rows of its own; images and sound have no padding mask.
NOT_TRIED = {"deepseek_v3": {"queries", "keys", "values"}, "whisper": {"padding"}, "vit": {"padding"}}


def can_be_tried(model):
    """All checks; without maps where the model has no AttentionInterface."""
    return set(CHECKS) - (set() if any(site.interface for site in ht.sites(model)) else {"maps"})


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "xlnet"])
def test_the_zoo_is_what_it_is_taken_for(name):
    model, batch = zoo_model(name)
    with untouched(model):
        state = torch.get_rng_state()
        found = ht.verify(model, batch)
        assert torch.equal(torch.get_rng_state(), state)
    assert found.ok, found
    tried = {check for _, check in found.found}
    assert tried == can_be_tried(model) - NOT_TRIED.get(name, set())
    assert ht.sites(model).verified is found


def test_a_model_of_text_needs_no_batch():
    model, _ = zoo_model("llama")
    found = ht.verify(model)
    assert found.ok
    lines = repr(found).splitlines()
    assert lines[0].split() == ["site", *CHECKS]
    assert lines[1].split()[:3] == ["decoder", "0", "ok"]
    assert lines[-1].startswith("tried 20")
    assert "transformers" in lines[-1]
    with pytest.raises(ValueError, match=r"ViT\w+ needs a batch to be tried on: verify\(model, batch\)"):
        ht.verify(zoo_model("vit")[0])


def test_rounding_in_a_deep_model_is_no_other_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "intermediate_size": 96, "num_attention_heads": 3, "vocab_size": 500}
    model = tf.LlamaForCausalLM(tf.LlamaConfig(num_hidden_layers=60, **sizes)).eval().to(torch.bfloat16)
    found = ht.verify(model)
    assert found.ok, found
    assert ("decoder 59", "maps") in found.found


def wrong(model, **changes):
    """Let the first site of a model be known as something else."""
    found = ht.sites(model)
    first = dataclasses.replace(found.all[0], **changes)
    state, _ = sites_module._KNOWN[model]
    sites_module._KNOWN[model] = state, dataclasses.replace(found, all=(first, *found.all[1:]))
    return first


def rolled(projection):
    return dataclasses.replace(projection, rows=projection.rows.roll(1, 0))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("llama", "encoder", "'decoder' and not 'encoder'"), ("bert", "decoder", "earlier tokens see a later one")],
)
def test_a_kind_that_is_wrong_is_found_and_refused(name, kind, words):
    model, batch = fresh(name)
    site = wrong(model, kind=kind)
    found = ht.verify(model, batch)
    assert words in found.failed[site.label, "kind"]
    assert "FAILS" in repr(found)
    assert CHECKS["kind"] in repr(found)
    labelled = batch | {"labels": batch["input_ids"]}
    with pytest.raises(ValueError, match=r"verify\(model\) found"):
        ht.gradient(model, labelled, sites=[site.key])


@pytest.mark.parametrize(("letter", "check"), [("q", "queries"), ("k", "keys"), ("v", "values")])
def test_rows_of_another_head_are_found_and_refused(letter, check):
    model, batch = fresh("bert")
    site = wrong(model, **{letter: rolled(getattr(ht.sites(model).all[0], letter))})
    found = ht.verify(model, batch)
    assert list(found.failed) == [(site.label, check)]
    assert "the rows of head 0 move z of heads [3], and not of [0] alone" in found.failed[site.label, check]
    with pytest.raises(ValueError, match="the rows of head 0 move z"):
        ht.prune(model, {site.key: [1]})


def test_what_follows_the_projection_is_found():
    model, batch = fresh("llama")
    attention = model.model.layers[0].self_attn
    own = attention.forward
    attention.forward = lambda *args, **kwargs: (own(*args, **kwargs)[0] * 0.5, None)
    found = ht.verify(model, batch)
    assert "something else than the sum" in found.failed["decoder 0", "sum"]
    assert ("decoder 1", "sum") not in found.failed


def test_a_head_that_leaks_into_another_is_found():
    model, batch = fresh("llama")
    out = model.model.layers[0].self_attn.o_proj
    own = out.forward
    out.forward = lambda z: own(z + z.flip(-1))  # each feature is read twice
    failed = ht.verify(model, batch).failed
    assert "does not write the others' sum" in failed["decoder 0", "gate"]


def test_padding_that_is_read_is_found():
    model, batch = fresh("bert")
    own = model.forward
    model.forward = lambda input_ids=None, attention_mask=None, **more: own(input_ids=input_ids, **more)
    failed = ht.verify(model, batch).failed
    assert "padding changes" in failed["encoder 0", "padding"]
    labelled = batch | {"labels": batch["input_ids"]}
    assert not batch["attention_mask"].all()
    with pytest.raises(ValueError, match=r"padding changes .* give batches of texts of equal length"):
        ht.gradient(model, labelled)
    whole = labelled | {"attention_mask": torch.ones_like(batch["attention_mask"])}
    assert ht.gradient(model, whole).values


@pytest.mark.parametrize(
    ("family", "name", "why"),
    [
        ("xlm", "XLMWithLMHeadModel", "its cache grows with every call, asked or not"),
        ("funnel", "FunnelForMaskedLM", "its queries are pooled, their keys are not"),
        ("pegasus_x", "PegasusXForConditionalGeneration", "it pads its texts to whole blocks itself"),
        ("ibert", "IBertForMaskedLM", "its projections return a scale as well"),
        ("mobilebert", "MobileBertForMaskedLM", "its attention is given queries, keys and values apart"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_attention_that_is_called_otherwise_is_tried(family, name, why):
    model = build(family, name)
    found = ht.verify(model, batch_of(model))
    assert {check for _, check in found.found} == can_be_tried(model), why
    assert {check for _, check in found.failed} <= {"padding"}, why  # MobileBERT joins neighbours, Funnel pools


def test_maps_of_another_kernel_are_found():
    model, batch = fresh("llama")
    attention = model.model.layers[0].self_attn
    own = attention.forward

    def other_with_maps(hidden_states, attention_mask=None, **kwargs):
        if attention.config._attn_implementation != "sdpa":  # hides keys for the fused kernel only
            hidden_states = hidden_states * 2
        return own(hidden_states, attention_mask=attention_mask, **kwargs)

    attention.forward = other_with_maps
    failed = ht.verify(model, batch).failed
    assert {check for _, check in failed} == {"maps"}
    assert "z is another" in failed["decoder 0", "maps"]
    with (
        pytest.raises(ValueError, match=r"z is another; record\(model, want=\('z',\)\) works"),
        ht.record(model, "maps"),
    ):
        pass


def test_maps_of_a_model_whose_kernels_disagree_are_refused():
    # without token_type_ids, sdpa lets PaliGemma see later tokens, and eager attention does not
    model = build("paligemma", "PaliGemmaForConditionalGeneration")
    failed = ht.verify(model, batch_of(model)).failed
    assert "z is another" in failed["language_model encoder 0", "maps"]


def test_a_model_whose_kernel_may_not_be_another_is_not_tried():
    model = build("deepseek_v32", "DeepseekV32ForCausalLM")
    found = ht.verify(model, batch_of(model))
    assert found.ok
    assert "maps" not in {check for _, check in found.found}


def test_tokens_before_examples_are_found():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    model = tf.MLCDVisionModel(tf.MLCDVisionConfig(**sizes, image_size=16, patch_size=8)).eval()
    batch = {"pixel_values": torch.randn(3, 3, 16, 16)}
    with torch.no_grad(), ht.record(model, "z") as r:
        model(**batch)
    assert r["encoder", 0].z.shape == (3, 5, 4, 8)
    assert ht.verify(model, batch).found["encoder 0", "kind"] == ""
    site = wrong(model, tokens_first=False)
    assert "taken for (example, token)" in ht.verify(model, batch).failed[site.label, "kind"]


def test_what_nothing_moves_is_not_called_right():
    model, batch = fresh("llama")
    attention = model.model.layers[0].self_attn
    own = attention.forward
    given = {}

    def first_stream(hidden_states, **kwargs):  # whatever it is given, it computes what it first was
        return own(given.setdefault("stream", hidden_states), **kwargs)

    attention.forward = first_stream
    found = ht.verify(model, batch)
    assert ("decoder 0", "kind") not in found.found
    assert found.found["decoder 1", "kind"] == ""


def test_an_output_projection_that_is_never_called_is_found():
    model, batch = fresh("llama")
    attention = model.model.layers[0].self_attn
    attention.forward = lambda hidden_states, **_: (hidden_states / 2, None)
    failed = ht.verify(model, batch).failed
    assert "nothing reaches its heads" in failed["decoder 0", "gate"]


def test_a_pass_without_a_gradient_is_found():
    model, batch = fresh("bert")
    layer = model.bert.encoder.layer[1]
    layer.forward = torch.no_grad()(layer.forward)
    failed = ht.verify(model, batch).failed
    assert list(failed) == [("encoder 1", "gradient")]
    assert "1 of 1 calls under torch.no_grad" in failed["encoder 1", "gradient"]


def test_attention_that_is_no_site_is_named():
    model = build("siglip_vision_model", "SiglipVisionModel")
    found = ht.verify(model, batch_of(model))
    assert not found.failed
    assert not found.ok
    assert any(isinstance(module, nn.MultiheadAttention) for module in model.modules())
    assert "MultiheadAttention" in found.unseen[0]
    assert "attention that is no site" in repr(found)


def test_a_result_is_for_the_model_as_it_was():
    model, batch = fresh("bert")
    assert ht.sites(model).verified is None
    assert isinstance(ht.verify(model, batch), Verification)
    assert ht.sites(model).verified is not None
    ht.prune(model, {("encoder", 0): [0]})
    assert ht.sites(model).verified is None  # it is another model now


def test_training_mode_stays():
    model, batch = fresh("bert")
    model.train()
    with untouched(model):
        assert ht.verify(model, batch).ok


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["t5", "bert", "llama", "gpt2", "marian"])
def test_half_precision_fails_nothing_and_hides_nothing(name, dtype):
    """T5's scores are large, so that kernels round them to other weights; padding that is read is no rounding."""
    model, batch = fresh(name)
    found = ht.verify(model.to(dtype), batch)
    assert found.ok, found
    with ht.record(model, "maps") as seen:
        model(**batch)
    assert all(seen[site].maps is not None for site in ht.sites(model))
    if name == "bert":
        model, batch = fresh(name)
        own = model.to(dtype).forward
        model.forward = lambda input_ids=None, attention_mask=None, **more: own(input_ids=input_ids, **more)
        assert "padding changes" in ht.verify(model, batch).failed["encoder 0", "padding"]


# --- before the first measure -----------------------------------------------------------------------------------------


def given(name):
    model, batch = fresh(name)
    labels = {} if name == "vit" else {"labels": batch["input_ids"]}
    return model, batch | labels


MEASURES = {
    "gradient": lambda model, batch: ht.gradient(model, batch),
    "ablation": lambda model, batch: ht.ablation(model, [batch], progress=False),
    "confidence": lambda model, batch: ht.confidence(model, iter([batch]), exclude=[]),
    "relevance": lambda model, batch: ht.relevance(model, batch),
    "fit_gates": lambda model, batch: ht.fit_gates(model, [batch], 0.1, steps=2, progress=False),
    "induction": lambda model, _: ht.induction_scores(model, n=5, length=4),
    "sinks": lambda model, batch: ht.attention_sinks(model, batch),
    "direct": lambda model, batch: ht.direct_logit_attribution(model, batch, [1] * len(batch["input_ids"])),
    "curve": lambda model, _: ht.curve(model, [("decoder", 0, 0)], lambda model: 0.5, keep=[0]),
    "cut_cost": lambda model, batch: ht.cut_cost(model, [("decoder", 0, 0)], {"own": [batch]}),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_tries_a_model_first_and_once(measure):
    model, batch = given("llama")
    assert ht.sites(model).verified is None
    MEASURES[measure](model, batch)
    tried = ht.sites(model).verified
    assert tried.ok
    assert tried.found
    MEASURES[measure](model, batch)
    assert ht.sites(model).verified is tried


@pytest.mark.parametrize("measure", ["gradient", "ablation", "confidence", "relevance"])
def test_a_measure_refuses_what_does_not_hold_without_being_asked(measure):
    model, batch = given("llama")
    wrong(model, kind="encoder")
    with pytest.raises(ValueError, match="do not see a later one, so it is 'decoder'"):
        MEASURES[measure](model, batch)


def few(split):
    return ht.corpus("organism", split, limit=10)


@pytest.mark.parametrize(
    ("check", "measure"),
    [
        ("kind", lambda model, tokenizer, batch: ht.taxonomy(model, tokenizer, few("test"), few("validation"))),
        ("padding", lambda model, tokenizer, batch: ht.taxonomy(model, tokenizer, few("test"), few("validation"))),
        ("padding", lambda model, tokenizer, batch: ht.probe(model, tokenizer, few("test"), few("validation"), "upos")),
        ("padding", lambda model, tokenizer, batch: ht.ablate(model, {}, "mean", reference=batch).__enter__()),
    ],
)
def test_measures_with_batches_of_their_own_refuse_what_does_not_hold(check, measure):
    model, tokenizer = ht.load()
    batch = tokenizer([str(s) for s in few("test")], return_tensors="pt", padding=True)
    every_site = ht.sites(model)
    _keep(every_site, {(site.label, check): "it does not hold" for site in every_site})
    with pytest.raises(ValueError, match=r"verify\(model\) found: it does not hold"):
        measure(model, tokenizer, batch)


@pytest.mark.parametrize("measure", ["induction", "sinks", "window"])
def test_measures_of_decoders_refuse_what_is_none(measure):
    model, batch = given("llama")
    every_site = ht.sites(model)
    _keep(every_site, {(site.label, "kind"): "it does not hold" for site in every_site})
    run = MEASURES.get(measure, lambda model, _: ht.window(model, {("decoder", 0): [0]}).__enter__())
    with pytest.raises(ValueError, match="it does not hold"):
        run(model, batch)


def test_a_model_that_cannot_be_tried_is_not_tried_for_ever(monkeypatch):
    model, batch = given("llama")
    attempts = []
    monkeypatch.setattr(verify_module, "verify", lambda *_: attempts.append(1) or 1 / 0)
    for _ in range(5):
        ht.gradient(model, batch)
    assert len(attempts) == 3


def test_whoever_wants_no_trial_says_so():
    model, batch = given("llama")
    assert repr(ht.verify(model, skip=True)) == "not tried, as skip=True asked for"
    passes = []
    handle = model.model.register_forward_hook(lambda *_: passes.append(1))
    ht.gradient(model, batch)
    handle.remove()
    assert len(passes) == 1
    assert ht.sites(model).verified.found == {}
    assert ht.verify(model).ok


def test_nothing_is_tried_inside_a_context_and_without_a_batch():
    model, batch = given("llama")
    with ht.ablate(model, {("decoder", 0): [1]}):
        ht.gradient(model, batch)
    assert ht.sites(model).verified is None
    images, batch = given("vit")
    assert ht.confidence(images, iter([batch]), exclude=[]).values
    assert ht.sites(images).verified is None, "a generator keeps its batches"
    ht.confidence(images, batch, exclude=[])
    assert ht.sites(images).verified.ok


def test_a_batch_that_cannot_be_tried_leaves_the_model_untried():
    model, batch = given("llama")
    nan = {"inputs_embeds": torch.full((1, 3, model.config.hidden_size), torch.nan)}
    with pytest.raises(ValueError, match="NaN or infinity"):
        ht.verify(model, nan)
    with pytest.raises(ValueError, match="NaN or infin"):
        ht.confidence(model, nan, exclude=[])
    assert ht.sites(model).verified is None
    ht.gradient(model, batch)
    assert ht.sites(model).verified.ok


def test_what_padding_holds_is_nobodys_output():
    model, batch = fresh("gpt2", "left")
    batch |= {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(0)}  # so that rows are taken whole
    assert not batch["attention_mask"][0].all() or not batch["attention_mask"][-1].all()
    for rows in (slice(0, 1), slice(-1, None), slice(None)):
        assert ht.verify(model, {name: value[rows] for name, value in batch.items()}).ok


@pytest.mark.parametrize("padded", [3, 12])
def test_padding_at_the_end_is_not_taken_for_a_direction(padded):
    """A late token that nobody sees is padding where those before it see each other."""
    model, _ = fresh("bert")
    ids = torch.arange(5, 21)[None]
    mask = torch.ones_like(ids)
    mask[:, -padded:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": torch.arange(16)[None]}  # taken whole
    found = ht.verify(model, batch)
    assert found.found["encoder 0", "kind"] == ""


@pytest.mark.parametrize("examples", [1, 20])
def test_more_examples_than_tokens(examples):
    """Rows of another size leave the batch whole: pictures in windows, frames of a film."""
    model, batch = fresh("bert")
    batch = {name: value[:1, :3].expand(examples, -1) for name, value in batch.items()} | {"output_attentions": False}
    batch["position_ids"] = torch.arange(3)[None]
    found = ht.verify(model, batch)
    assert found.ok, found
    assert found.found["encoder 0", "kind"] == ""


@pytest.mark.parametrize("tokens", [2, 3, 5, 8])
def test_a_sharp_softmax_is_no_direction(tokens):
    """Where each query sees one key, a late token may be seen by later ones alone."""
    config = tf.BertConfig(
        vocab_size=60, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    for seed in range(12):
        torch.manual_seed(seed)
        model = tf.BertModel(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_(0, 2)
        found = ht.verify(model, {"input_ids": torch.randint(5, 60, (1, tokens))})
        assert not any(check == "kind" for _, check in found.failed), (seed, found)


def test_a_long_text_that_cannot_be_cut_is_not_run_whole():
    """Maps of 16,384 tokens would take more than the machine has."""
    model, _ = fresh("bert")
    lengths = []
    handle = model.register_forward_pre_hook(
        lambda _module, _args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    ids = torch.randint(5, 60, (1, 600))
    whole = {"input_ids": ids, "attention_mask": torch.ones(1, 1, 600, 600)}
    verify_once(model, whole)
    handle.remove()
    assert lengths
    assert max(lengths) < 20
    assert ht.sites(model).verified.ok


def test_the_users_random_numbers_are_as_they_were():
    model, batch = given("llama")
    torch.manual_seed(3)
    right = torch.rand(2)
    torch.manual_seed(3)
    ht.gradient(model, batch)
    assert torch.equal(torch.rand(2), right)


def test_no_other_thread_measures_a_model_that_is_tried(monkeypatch):
    model, batch = given("llama")
    said = []

    def elsewhere(*_):
        def measure():
            try:
                ht.gradient(model, batch)
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=measure)
        thread.start()
        thread.join()

    handle = model.lm_head.register_forward_hook(elsewhere)
    ht.verify(model)
    handle.remove()
    assert "verify()" in said[0]


def test_a_decoder_s_text_may_begin_with_padding():
    """FSMT hides it from all, and a query that may see nothing sees everything."""
    model, batch = fresh("fsmt")
    for row in ([0, 5, 0, 7], [0, 5]):
        ids = torch.tensor([row]).expand(len(batch["input_ids"]), len(row))
        tried = ht.verify(model, batch | {"decoder_input_ids": ids})
        assert tried.ok, tried
        assert tried.found["decoder 0", "kind"] == ""
