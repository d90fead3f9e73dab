"""Numbers that were once wrong without a word: each test failed before its mend."""

import copy

import pytest
import torch
import transformers as tf

import headtools as ht

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


def test_the_cache_of_a_sliding_window():
    config = tf.MistralConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
    )
    model, cache = tf.MistralForCausalLM(config).eval(), tf.DynamicCache(config=config)
    with torch.no_grad():
        model(torch.arange(32)[None], past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert ht.cache_size(model, tokens=32) == held


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
    config = tf.IBertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
    )
    torch.manual_seed(0)
    model, ids = tf.IBertForMaskedLM(config).eval(), torch.arange(2, 14).view(2, 6)
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
