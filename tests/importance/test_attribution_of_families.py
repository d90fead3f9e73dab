"""What heads write, and what they say directly, in families that other libraries got wrong: against plain hooks."""

from types import SimpleNamespace

import pytest
import torch

import headtools as ht
from headtools.importance.logit_attribution import _logit_scale
from recipes.families import build

IDS = torch.tensor([[11, 7, 23, 41, 5, 17], [3, 29, 31, 8, 53, 12]])
TOKENS = torch.tensor([9, 14])
# one key and value head for all queries (Falcon, GPT BigCode), keys from a latent (DeepSeek), attention beside
# the feed-forward (Falcon, Cohere, GPT-NeoX), logits that are multiplied (Cohere, Granite), a norm without
# weights (OLMo)
ADD_UP = {
    "cohere": "CohereForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama": "LlamaForCausalLM",
    "opt": "OPTForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "olmo": "OlmoForCausalLM",
    "phi": "PhiForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
REFUSED = {
    "gemma3_text": ("Gemma3ForCausalLM", "does not add"),
    "gemma3n_text": ("Gemma3nForCausalLM", "does not"),
    "bloom": ("BloomForCausalLM", "does not add"),
    "olmo2": ("Olmo2ForCausalLM", "does not add"),
    "olmo3": ("Olmo3ForCausalLM", "does not add"),
    "clip_text_model": ("CLIPTextModel", "has no unembedding"),
}


def written_down(family, name):
    """A small random model whose softmax is not flat."""
    torch.manual_seed(0)
    model = build(family, name).eval()
    if family in ("granite", "granitemoe"):
        model.config.logits_scaling = 8.0  # the default divides by 1
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return model


@pytest.mark.parametrize(
    ("family", "name"), [*ADD_UP.items(), *((family, name) for family, (name, _) in REFUSED.items())]
)
def test_what_heads_write_is_what_the_layer_writes(family, name):
    model, written, hooks = written_down(family, name), {}, []
    for site in ht.sites(model):

        def keep(_module, _given, output, key=site.key):
            written[key] = output

        hooks.append(site.out.register_forward_hook(keep))
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(IDS)
    for hook in hooks:
        hook.remove()
    assert written
    for site in ht.sites(model):
        bias = getattr(site.out, "bias", None)
        total = ht.contributions(site, seen[site].z).sum(2) + (0 if bias is None else bias)
        assert torch.allclose(total, written[site.key], atol=1e-5), site


def final_norm(model):
    """The module that gives what the unembedding reads, found by what it gives and not by its name; and the logits."""
    outputs, read, hooks = [], [], []
    for module in model.modules():
        hooks.append(module.register_forward_hook(lambda m, _, out: outputs.append((m, out))))
    unembedding = model.get_output_embeddings()
    hooks.append(unembedding.register_forward_pre_hook(lambda _, given: read.append(given[0])))
    with torch.no_grad():
        logits = model(IDS).logits
    for hook in hooks:
        hook.remove()
    for module, output in outputs:
        same = isinstance(output, torch.Tensor) and output.shape == read[0].shape and torch.equal(output, read[0])
        if same and not list(module.children()):
            return module, logits
    raise AssertionError("no module gives what the unembedding reads")


@pytest.mark.parametrize(("family", "name"), ADD_UP.items())
def test_what_a_head_says_directly_is_what_the_logit_loses_when_it_is_taken_off_the_stream(family, name):
    """The final norm keeps its scale, so it is a factor for each feature, which the run itself shows."""
    model = written_down(family, name)
    found = ht.direct_logit_attribution(model, {"input_ids": IDS}, TOKENS)
    norm, logits = final_norm(model)
    rows = torch.arange(2)
    assert torch.allclose(found.logit, logits[rows, -1, TOKENS], atol=1e-4)
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(IDS)
    centres = "LayerNorm" in type(norm).__name__ or family == "stablelm"
    bias = getattr(norm, "bias", None)

    def centred(stream):
        return stream - stream.mean(-1, keepdim=True) if centres else stream

    for site in ht.sites(model):
        for head in range(site.heads):
            off = ht.contributions(site, seen[site].z)[..., head, :]

            def scaled(_module, given, output, off=off):
                read = centred(given[0])
                factor = (output - (0 if bias is None else bias)) / read
                return output - factor * centred(off)

            hook = norm.register_forward_hook(scaled)
            with torch.no_grad():
                without = model(IDS).logits[rows, -1, TOKENS]
            hook.remove()
            lost = logits[rows, -1, TOKENS] - without
            assert torch.allclose(found.heads[site.key][:, head], lost, atol=2e-4), (site, head)
    assert max(part.abs().max() for part in found.heads.values()) > 1e-3


@pytest.mark.parametrize("family", REFUSED)
def test_a_stream_that_is_no_sum_of_what_heads_write_is_refused(family):
    name, words = REFUSED[family]
    with pytest.raises(ValueError, match=words):
        ht.direct_logit_attribution(written_down(family, name), {"input_ids": IDS}, TOKENS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "capped"), [(0.3, True), (1.0, True), (3.0, True), (1.0, False)])
def test_a_cap_is_no_factor(size, capped, dtype):
    raw = (torch.randn(2, 5, 400, generator=torch.Generator().manual_seed(0)) * size).to(dtype)
    raw[0, 0] = torch.nan  # a padded row, which nobody reads
    logits = torch.tanh(raw / 15) * 15 if capped else raw / 16
    found = _logit_scale(raw, SimpleNamespace(logits=logits), (torch.arange(2), torch.tensor([4, 3])))
    assert found == (1.0 if capped else pytest.approx(1 / 16, rel=0.01))
    assert _logit_scale(raw, (logits, None), (torch.arange(2), torch.tensor([4, 3]))) == found
