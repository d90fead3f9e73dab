"""Batches and models in a state that gives no honest answer: an error when the model runs, and the model untouched."""

import pytest
import torch

import headtools as ht

from .reference import open_gates, untouched
from .zoo import fresh, logits, run, zoo_model


def every_context(model, batch):
    """Each context manager, ready to enter, with its name."""
    sites = ht.sites(model)
    heads = {sites.all[0].key: [0]}
    return {
        "gates": ht.gates(model, open_gates(sites)),
        "zero": ht.ablate(model, heads),
        "mean": ht.ablate(model, heads, replacement="mean", reference=batch),
        "resample": ht.ablate(model, heads, replacement="resample", reference=batch),
        "maps": ht.record(model),
        "z": ht.record(model, want="z"),
    }


# transformers asks for torch.compiler.is_exporting, which is new in torch 2.7, when it is compiled.
can_compile = pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 does not compile the models of transformers 5"
)
CONTEXTS = ("gates", "zero", "mean", "resample", "maps", "z")


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "marian"])
def test_an_empty_batch(name, context):
    model, batch = zoo_model(name)
    empty = {key: value[:0] for key, value in batch.items()}
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"batch is empty.*\(0, \d\).*pass"),
        every_context(model, batch)[context],
    ):
        run(model, empty)
    no_words = {key: value[:, :0] for key, value in batch.items()}
    with untouched(model), pytest.raises(ValueError, match=r"empty.*\(3, 0\)"), every_context(model, batch)[context]:
        run(model, no_words)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_a_row_of_padding(name, context):
    model, batch = zoo_model(name)
    padded = {key: value.clone() for key, value in batch.items()}
    padded["attention_mask"][1] = 0
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"attention_mask: rows \[1\] are all padding.*drop"),
        every_context(model, batch)[context],
    ):
        run(model, padded)


def test_an_empty_or_padded_reference():
    model, batch = zoo_model("bert")
    empty = {key: value[:0] for key, value in batch.items()}
    padded = batch | {"attention_mask": batch["attention_mask"] * 0}
    for reference, words in ((empty, "batch is empty"), (padded, "all padding")):
        with (
            untouched(model),
            pytest.raises(ValueError, match=words),
            ht.ablate(model, {("encoder", 0): [0]}, replacement="mean", reference=reference),
        ):
            pass


def test_training_mode():
    model, batch = fresh("bert")
    model.train()
    with untouched(model), pytest.raises(ValueError, match=r"training mode.*eval\(\)"), ht.record(model):
        run(model, batch)
    with ht.record(model, training=True) as r:
        run(model, batch)
    assert len(r) == 3


def test_training_mode_in_a_part_of_the_model():
    """model.training is the root's own flag: a frozen root with a training layer has dropout all the same."""
    model, batch = fresh("bert")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.bert.encoder.layer[1].train()
    with pytest.raises(ValueError, match=r"training mode.*eval\(\)"), ht.record(model):
        run(model, batch)


@pytest.mark.parametrize(
    "way", [pytest.param("function", marks=can_compile), pytest.param("method", marks=can_compile), "part"]
)
def test_a_compiled_model(way):
    """Compiled once, refused by every context, and what it computes stays the same."""
    model, batch = fresh("bert")
    if way == "method":
        model.compile(backend="eager")
    elif way == "part":
        model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0], backend="eager")
    given = torch.compile(model, backend="eager") if way == "function" else model
    plain = run(given, batch)
    for context in CONTEXTS:
        with untouched(model), pytest.raises(RuntimeError, match=r"compiled before.*compile inside"):
            every_context(given, batch)[context].__enter__()
        assert torch.equal(run(given, batch), plain), context
    torch._dynamo.reset()


def test_pruning_a_compiled_model():
    model, _ = fresh("bert")
    compiled = torch.compile(model, backend="eager")
    with untouched(model), pytest.raises(RuntimeError, match=r"compiled before"):
        ht.prune(compiled, {("encoder", 0): [0]})


@pytest.mark.parametrize("name", ["gpt2", "marian", "t5"])
@pytest.mark.parametrize("shape", [(3, 4), (3, 7, 4)])
def test_beam_search_with_gates_per_example(name, shape):
    model, batch = zoo_model(name, "left")
    batch = {key: value for key, value in batch.items() if key != "decoder_input_ids"}
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"Beam search.*\(4,\)"),
        ht.gates(model, {("decoder", 0): torch.ones(shape)}),
    ):
        model.generate(**batch, num_beams=2, max_new_tokens=3, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (3, 6, 4), (3, 1, 4), (1, 7, 4)])
def test_gates_for_another_batch(shape):
    model, batch = zoo_model("bert")
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"in a forward pass of 3 rows and 7 tokens"),
        ht.gates(model, {("encoder", 0): torch.ones(shape)}),
    ):
        run(model, batch)


def test_a_context_cannot_be_entered_twice():
    model, batch = zoo_model("bert")
    context = ht.ablate(model, {("encoder", 0): [0]})
    with context:
        logits(model(**batch))
    with untouched(model), pytest.raises((RuntimeError, AttributeError)), context:
        pass


@pytest.mark.parametrize("name", ["t5", "bert"])
def test_a_model_inside_data_parallel(name):
    """It hides whether the model reads and writes: labels were neither moved nor made the decoder's input."""
    from headtools.importance.gradient import gradient

    model, batch = zoo_model(name)
    wrapped, key = torch.nn.DataParallel(model), ht.sites(model).all[0].key
    batch = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": batch["input_ids"]}
    for use in (
        lambda: gradient(wrapped, batch),
        lambda: ht.ablation(wrapped, batch, progress=False),
        lambda: ht.ablate(wrapped, {key: [0]}).__enter__(),
        lambda: ht.record(wrapped).__enter__(),
        lambda: ht.prune(wrapped, {key: [0]}),
        lambda: ht.fit_gates(wrapped, batch, 1.0, steps=1, progress=False),
        lambda: ht.recover(wrapped, batch, steps=1, progress=False),
    ):
        with untouched(model), pytest.raises(TypeError, match=r"got a DataParallel.*the model inside: model\.module"):
            use()
    with ht.ablate(wrapped.module, {key: [0]}):
        gradient(wrapped.module, batch)
