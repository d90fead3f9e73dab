"""Numbers that were once wrong without a word: each test failed before its mend."""

import copy
import gc

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools.heads.ablate import replacement_values
from recipes.families import batch_of, build

from .reference import checkpoint
from .zoo import error, fresh, logits, run, valid, zoo_model


def gradients(model, batch, context):
    """The loss and the gradients of all weights, with a context around forward and backward pass."""
    model.zero_grad()
    with context:
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
    return loss.detach(), [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def contexts(model, batch):
    yield lambda: ht.ablate(model, {("decoder", 0): [1]}, replacement="resample", reference=batch)
    with torch.no_grad(), ht.record(model, want="z") as one:
        model(**batch)
    first = one["decoder", 0].z
    yield lambda: ht.patch(model, {("decoder", 0): [1]}, {("decoder", 0): [first, first.flip(0)]})


@pytest.mark.parametrize("number", [0, 1], ids=["resample", "patch"])
def test_checkpointing_repeats_a_layer_with_what_it_was_given(number):
    """Gradient checkpointing runs each layer again on the way back: not with other draws, not with the next source."""
    model, batch = fresh("llama")
    context = list(contexts(model, batch))[number]
    plain = gradients(model, batch, context())
    checkpoint(model)
    model.train()  # there is no dropout; layers are run again only while a model trains
    found = gradients(model, batch, context())
    assert torch.equal(plain[0], found[0])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain[1], found[1], strict=True))


def test_a_window_needs_causal_attention():
    model, batch = zoo_model("llama")
    ids = batch["input_ids"][:1]
    size = ids.shape[1]
    prefix = torch.ones(size, size).tril().bool()
    prefix[:3, :3] = True  # three tokens that see one another
    refused = pytest.raises(ValueError, match="some queries see later keys")
    with torch.no_grad(), ht.window(model, {("decoder", 0): [1]}, first=0, recent=1), refused:
        model(ids, attention_mask=prefix[None, None], use_cache=False)


@pytest.mark.parametrize("unfrozen", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral", "gpt_neox", "t5"])
def test_a_layer_without_heads_stays_without(name, unfrozen):
    """The one silent head that lets the model run must not learn, not even where someone unfreezes all weights."""
    model, batch = fresh(name)
    key = list(ht.sites(model))[-1].key
    ht.prune(model, {key: range(ht.sites(model)[key].heads)})
    model = copy.deepcopy(model).train()
    if unfrozen:
        model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        logits(model(**batch)).logsumexp(-1).sum().backward()
        optimizer.step()
    site = ht.sites(model)[key]
    assert site.empty
    assert not site.out.weight.any()


def _llama_without_a_layer():
    """A pruned Llama with grouped queries: some heads gone, and all of one layer."""
    model, batch = fresh("llama")
    ht.prune(model, {("decoder", 0): [1, 5], ("decoder", 1): range(6)})
    return model, batch


def test_a_layer_without_heads_stays_so_in_a_folder(tmp_path):
    model, batch = _llama_without_a_layer()
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    site = ht.sites(again)["decoder", 1]
    assert site.empty
    assert not site.out.weight.requires_grad
    assert error(valid("llama", run(again, batch), batch), valid("llama", run(model, batch), batch)) <= 1e-5


def test_trainer_after_prune(tmp_path):
    model, batch = _llama_without_a_layer()
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": ids} for ids, mask in zip(*batch.values(), strict=True)
    ]
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    arguments = tf.TrainingArguments(
        tmp_path, max_steps=2, report_to=[], save_strategy="no", weight_decay=0.1, disable_tqdm=True, use_cpu=True
    )
    tf.Trainer(model, arguments, train_dataset=rows).train()
    site = ht.sites(model)["decoder", 1]
    assert site.empty
    assert not site.out.weight.any()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert any("layers.0.self_attn.o_proj" in name for name in changed)
    assert ht.pruned(model) == [("decoder", 0, 1), ("decoder", 0, 5), *(("decoder", 1, head) for head in range(6))]


def test_projections_that_return_more_than_a_tensor():
    model, ids = build("ibert", "IBertForMaskedLM"), torch.arange(2, 14).view(2, 6)
    batch = {"input_ids": ids, "labels": ids}
    rises = ht.ablation(model, batch, progress=False).rows["encoder", 1]
    plain = ht.ablation(model, batch, progress=False, sites=[("encoder", 1)]).rows["encoder", 1]
    assert torch.allclose(rises, plain)
    with torch.no_grad():
        full = model(**batch).loss
        with ht.ablate(model, {("encoder", 1): [2]}):
            without = model(**batch).loss
    assert rises.mean(0)[2].item() == pytest.approx((without - full).item(), abs=1e-5)


def test_a_sentence_with_other_line_ends(tmp_path):
    text = "One half\u2028and the\u0085other\x0cof it."
    (tmp_path / "a.conllu").write_text(f"# text = {text}\n1\tOne\t_\tNUM\t_\t_\t0\troot\t_\t_\n\n", encoding="utf-8")
    assert ht.natural_text(tmp_path / "a.conllu", "all") == [text]


@pytest.mark.filterwarnings("error")
def test_a_context_with_a_wrong_argument_says_only_that():
    """Beside the ``TypeError``, Python printed an exception of the unused context."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'sites'"):
        ht.record(zoo_model("llama")[0], sites=["decoder"])
    gc.collect()


def test_gates_under_vmap_are_refused():
    model, batch = zoo_model("llama")

    def gated(gate):
        with ht.gates(model, {("decoder", 1): gate}):
            return model(batch["input_ids"], use_cache=False).logits.sum()

    with pytest.raises(RuntimeError, match=r"vmap: .* data-dependent"):  # torch's own words: gates are looked at
        torch.func.vmap(gated)(torch.eye(ht.sites(model)["decoder", 1].heads))


# --- layouts: which rows are whose, tried by changing them ------------------------------------------------------------


def spread(model, scale=0.3):
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0, scale)
    return model.eval()


IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])


def moved(model, site, projection, head):
    """The heads whose z moves when one head's rows of a projection do."""
    weight = projection.module.weight
    with torch.no_grad():
        with ht.record(model, want="z") as before:
            model(IDS)
        old = weight.clone()
        weight[projection.rows[head]] += 1
        with ht.record(model, want="z") as after:
            model(IDS)
        weight.copy_(old)
    changed = (before[site].z - after[site].z).abs().amax((0, 1, 3)) > 1e-6
    return changed.nonzero().flatten().tolist()


def test_codegen_has_its_projections_in_four_blocks():
    config = tf.CodeGenConfig(vocab_size=60, n_embd=64, n_layer=1, n_head=8, n_positions=32, rotary_dim=4)
    model = spread(tf.CodeGenForCausalLM(config))
    site = ht.sites(model)["decoder", 0]
    for head in (0, 3, 7):
        assert [moved(model, site, part, head) for part in (site.q, site.k, site.v)] == [[head]] * 3


def test_differential_attention_has_no_heads_of_its_own():
    """Its outputs are differences of pairs of heads, in half as many pieces of twice the width."""
    with pytest.raises(ValueError, match="found attention but not its heads"):
        ht.sites(build("diffllama", "DiffLlamaForCausalLM"))


def test_attention_of_a_kind_that_is_not_understood_is_named():
    with pytest.warns(UserWarning, match="does not understand 1 attention modules"):
        sites = ht.sites(build("reformer", "ReformerModelWithLMHead"))
    assert len(sites) == 1
    assert "LSHSelfAttention" in sites.skipped[0]
    assert "not understood" in repr(sites)


# --- padding: what another mask hides, and what a model adds itself ---------------------------------------------------


def test_padding_that_another_mask_tells():
    config = tf.Siglip2VisionConfig(
        hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, num_patches=16, patch_size=4
    )
    model, pixels = spread(tf.Siglip2VisionModel(config)), torch.randn(1, 16, 48)
    mask, shapes = torch.tensor([[1] * 4 + [0] * 12]), torch.tensor([[2, 2]])
    padded = {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    alone = {"pixel_values": pixels[:, :4], "pixel_attention_mask": mask[:, :4], "spatial_shapes": shapes}
    found, right = (ht.confidence(model, batch, exclude=[]).flat() for batch in (padded, alone))
    assert torch.allclose(found, right, atol=1e-5)


def test_a_mask_that_does_not_tell_tokens_apart_is_refused():
    model = build("visual_bert", "VisualBertModel")
    batch = {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),
        "visual_embeds": torch.randn(2, 4, model.config.visual_embedding_dim),
        "visual_attention_mask": torch.tensor([[1, 1, 0, 0]] * 2),
        "visual_token_type_ids": torch.ones(2, 4, dtype=torch.long),
    }
    with (
        pytest.raises(ValueError, match="visual_attention_mask hides something"),
        ht.ablate(model, {("encoder", 0): [1]}, "mean", batch),
    ):
        pass


def test_a_mask_of_images_does_not_concern_a_text():
    """Nor is the text's mask one of images."""
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = sizes | {"vocab_size": 60, "max_position_embeddings": 16, "projection_size": 32}
    config = tf.Siglip2Config(text_config=text, vision_config=sizes | {"num_patches": 16, "patch_size": 4})
    model, pixels = spread(tf.Siglip2Model(config)), torch.randn(2, 16, 48)
    images = {"pixel_values": pixels, "spatial_shapes": torch.tensor([[2, 2], [4, 4]])}
    images["pixel_attention_mask"] = torch.tensor([[1] * 4 + [0] * 12, [1] * 16])
    texts = {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 4 + [0] * 2, [1] * 6])}
    both = ht.confidence(model, texts | images, exclude=[])
    vision = ht.confidence(model.vision_model, images, exclude=[])
    assert torch.allclose(both.values["vision_model", "encoder", 0], vision.values["encoder", 0])
    only_text = ht.confidence(model.text_model, texts, exclude=[])
    assert torch.allclose(both.values["text_model", "encoder", 0], only_text.values["encoder", 0])


@pytest.mark.parametrize("with_mask", [True, False])
def test_tokens_that_a_model_adds_to_fill_a_block_are_padding(with_mask):
    model = build("longformer", "LongformerModel")
    batch = {"input_ids": IDS} | ({"attention_mask": torch.ones_like(IDS)} if with_mask else {})
    with torch.no_grad(), ht.record(model, want="z") as r:
        model(**batch)
    z = r["encoder", 0].z
    assert z.shape[1] == 8  # of six tokens
    found = replacement_values(model, ht.sites(model), "mean", batch)["encoder", 0]
    assert torch.allclose(found[0], z[:, :6].flatten(0, 1).mean(0), atol=1e-5)


# --- what a model does only under the names of its own kernels --------------------------------------------------------


def test_an_index_that_chooses_keys_for_kernels_of_known_names():
    """DeepSeek V3.2. Inside record() every query saw every key, and the model's logits moved."""
    model, ids = build("deepseek_v32", "DeepseekV32ForCausalLM"), torch.arange(5, 17)[None]
    with torch.no_grad():
        plain = model(ids).logits
        for want in ("maps", "q", "visible"):
            with pytest.raises(ValueError, match="DeepseekV32Attention hides keys only while"), ht.record(model, want):
                model(ids)
        with ht.record(model, want="z") as r:
            assert torch.equal(model(ids).logits, plain)
    assert len(r) == 2


def funnel():
    sizes = {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 40, "block_sizes": [1, 1], "num_decoder_layers": 1}
    return tf.FunnelForMaskedLM(tf.FunnelConfig(vocab_size=60, **sizes)), "funnel.decoder.layers.0.attention"


def bridgetower():
    text = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision = {"hidden_size": 64, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    config = tf.BridgeTowerConfig(text_config=text, vision_config=vision, **sizes)
    return tf.BridgeTowerModel(config), "cross_modal_text_layers.0.attention.self"


@pytest.mark.parametrize("build", [funnel, bridgetower])
def test_attention_that_is_called_a_decoder_and_sees_all(build):
    model, name = build()
    assert next(site.kind for site in ht.sites(model) if site.name == name) == "encoder"


def test_a_mask_for_every_head_cannot_be_pruned():
    """What was pruned could not run: the model gives its attention a mask for the number of heads it was built with."""
    with pytest.raises(ValueError, match="full number of heads"):
        ht.prune(build("eomt", "EomtForUniversalSegmentation"), {("encoder", 0): [0]})


# --- what runs several times, or without a gradient -------------------------------------------------------------------


def test_attention_that_runs_once_an_image():
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    sizes = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4}
    config = Qwen2VLVisionConfig(**sizes, spatial_merge_size=2, temporal_patch_size=1)
    model = spread(Qwen2VisionTransformerPretrainedModel(config))
    pixels, two_images = torch.randn(24, 48), torch.tensor([[1, 4, 4], [1, 2, 4]])
    with torch.no_grad():
        with ht.record(model) as one:
            model(pixels[:16], grid_thw=two_images[:1])
        with pytest.raises(ValueError, match="attention several times in one call"), ht.record(model):
            model(pixels, grid_thw=two_images)
        with ht.record(model, want="z") as both:
            model(pixels, grid_thw=two_images)
    assert one["encoder", 0].maps.shape[-1] == len(one["encoder", 0].z) == 16
    assert len(both["encoder", 0].z) == 24
    batch = {"hidden_states": pixels, "grid_thw": two_images}
    with pytest.raises(ValueError, match="puts all examples into one row"):
        ht.gradient(model, batch, loss=lambda out, batch: out.pooler_output.norm()[None], per="batch")


def test_a_layer_called_without_its_hooks_is_one_call_each_time():
    """A model that calls ``attention.forward`` runs no hook of it: its output projection tells where a call ends."""
    model, batch = fresh("llama")
    for layer in model.model.layers:
        kind = type(layer.self_attn)
        layer.self_attn.__class__ = type(kind.__name__, (kind,), {"__call__": kind.forward})
    with torch.no_grad(), ht.record(model) as r:
        model(**batch)
        model(**batch)
    assert r["decoder", 0].maps.shape[1] == ht.sites(model)["decoder", 0].heads


def test_an_id_that_stands_for_pictures_may_be_beyond_the_vocabulary():
    model = build("paligemma", "PaliGemmaForConditionalGeneration")
    model.config.image_token_id = model.model.config.image_token_id = 200  # of 96
    ids = torch.cat([torch.full((1, 16), 200), torch.arange(5, 9)[None]], 1)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    with torch.no_grad(), ht.record(model, "z") as r:
        model(**batch, pixel_values=torch.randn(1, 3, 32, 32))
    assert r["language_model", "encoder", 0].z.shape[1] == 20
    with pytest.raises(ValueError, match="the model knows 0 to 95"), ht.record(model, "z"):
        model(**batch)


def test_a_pass_without_gradient_has_no_slope():
    model = build("hrm_text", "HrmTextForCausalLM")
    for measure in (ht.gradient, ht.relevance):
        with pytest.raises(ValueError, match="runs it under torch"):
            measure(model, {"input_ids": IDS, "labels": IDS})


# --- direct logit attribution: what attention writes must reach the sum as it is --------------------------------------


@pytest.mark.parametrize(
    ("family", "name", "scales"),
    [
        ("falcon_h1", "FalconH1ForCausalLM", {"attention_out_multiplier": 0.5, "mamba_d_ssm": 64, "mamba_d_head": 8}),
        ("minimax", "MiniMaxForCausalLM", {"full_attn_beta_factor": 0.5, "mlp_beta_factor": 1}),
        ("granite", "GraniteForCausalLM", {"residual_multiplier": 0.5}),
    ],
)
def test_a_stream_that_scales_what_is_written_is_refused(family, name, scales):
    config = build(family, name).config
    config.update(scales)
    with pytest.raises(ValueError, match="does not add what its attention writes to the stream as it is"):
        ht.direct_logit_attribution(spread(getattr(tf, name)(config)), {"input_ids": IDS}, [7, 8])


# --- ablation, rows and attribution of models that are rarely met -----------------------------------------------------


def test_uniform_attention_goes_through_the_output_gate():
    """Replay writes what the model makes of attention's result, a gate (Qwen3-Next) or a norm (BitNet) included."""
    for model in (build("qwen3_next", "Qwen3NextForCausalLM"), build("bitnet", "BitNetForCausalLM")):

        def losses(model=model):
            with torch.no_grad():
                logits = model(IDS, use_cache=False).logits[:, :-1]
            return torch.nn.functional.cross_entropy(logits.mT, IDS[:, 1:], reduction="none").mean(1)

        found = ht.ablation(model, {"input_ids": IDS, "labels": IDS}, replacement="uniform").rows["decoder", 0][:, 1]
        before = losses()
        with ht.ablate(model, {("decoder", 0): [1]}, replacement="uniform"):
            right = losses() - before
        assert torch.allclose(found.float(), right, atol=1e-4)
        assert right.abs().max() > 1e-3


def test_heads_that_are_convolutions_are_none():
    """ConvBERT: half of what the output projection reads comes from convolutions."""
    with pytest.raises(ValueError, match="found attention but not its heads"):
        ht.sites(build("convbert", "ConvBertModel"))


def test_projections_that_torch_reads_and_never_calls_are_no_site():
    """WavLM gives its weights to a function of torch: ablation changed nothing, without a word."""
    with pytest.raises(ValueError, match="found attention but not its heads"):
        ht.sites(build("wavlm", "WavLMForCTC"))


def test_a_decoder_that_writes_all_at_once_is_not_causal():
    model = build("fastspeech2_conformer", "FastSpeech2ConformerModel")
    assert set(ht.sites(model).kinds) == {"encoder"}


def test_a_decoder_that_is_one_by_an_argument_is_causal():
    """BLIP's captioner was called an encoder: its kind is neither in its modules nor in its path."""
    model = build("blip", "BlipForConditionalGeneration")
    assert {site.kind for site in ht.sites(model) if site.name.startswith("text_decoder")} == {"decoder", "cross"}
    assert not ht.verify(model, batch_of(model)).failed


@pytest.mark.skipif(not hasattr(tf, "T5Gemma2Config"), reason="transformers is older")
def test_attention_to_two_sequences_at_once_is_no_site():
    """T5Gemma 2's decoder was called encoder."""
    with pytest.warns(UserWarning, match="does not understand 2 attention modules"):
        found = ht.sites(build("t5gemma2", "T5Gemma2ForConditionalGeneration"))
    assert all("decoder" not in site.name for site in found)


def test_queries_twice_as_wide_as_keys_are_a_gate_only_beside_such_values():
    """With fewer key heads than value heads, every second half of a query head was taken for a gate."""

    class SelfAttention(torch.nn.Module):
        def __init__(self, keys, values):
            super().__init__()
            self.num_heads, self.head_dim = 4, 8
            self.q_proj, self.k_proj = torch.nn.Linear(32, 32), torch.nn.Linear(32, keys)
            self.v_proj, self.o_proj = torch.nn.Linear(32, values), torch.nn.Linear(32, 32)

    with pytest.raises(ValueError, match="found attention but not its heads"):
        ht.sites(torch.nn.ModuleList([SelfAttention(16, 32)]))
    assert ht.sites(torch.nn.ModuleList([SelfAttention(16, 16)])).n_heads == 4
