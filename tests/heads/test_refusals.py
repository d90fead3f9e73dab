"""Bad input: an error that says what came and what to do, and a model as it was before."""

import copy

import pytest
import torch

import headtools as ht

from .reference import open_gates, state, untouched
from .zoo import fresh, logits, run, zoo_model

ONES = torch.ones(4)


def gate(key, value):
    return lambda model: ht.gates(model, {key: value})


@pytest.mark.parametrize(
    ("enter", "kind", "words"),
    [
        (gate(("encoder", 0), torch.ones(5)), ValueError, r"4 heads.*\(4,\), \(B, 4\).*got \(5,\)"),
        (gate(("encoder", 0), torch.ones(())), ValueError, r"got \(\)"),
        (gate(("encoder", 0), torch.ones(4, 7)), ValueError, r"got \(4, 7\)"),
        (gate(("encoder", 0), torch.ones(1, 1, 1, 4)), ValueError, r"got \(1, 1, 1, 4\)"),
        (gate(("encoder", 0), [1, 1, 1, 1]), TypeError, r"must be a tensor, got list.*torch\.tensor"),
        (gate(("encoder", 0), torch.ones(4, dtype=torch.long)), TypeError, r"int64.*\.float\(\)"),
        (gate(("encoder", 0), torch.tensor([1, float("nan"), 1, 1])), ValueError, r"NaN"),
        (gate(("encoder", 0), torch.tensor([1, float("inf"), 1, 1])), ValueError, r"infinity"),
        (gate(("nonsense", 0), ONES), KeyError, r"nonsense.*encoder 0\.\.2"),
        (gate(("encoder", 3), ONES), KeyError, r"encoder', 3.*encoder 0\.\.2"),
        (gate(("encoder", -1), ONES), KeyError, r"encoder 0\.\.2"),
        (gate("encoder", ONES), KeyError, r"kind, not a site.*\('encoder', 0\)"),
        (lambda model: ht.gates(model, [ONES]), TypeError, r"must look like .*got list"),
        (lambda model: ht.gates(model, ONES), TypeError, r"must look like .*got Tensor"),
    ],
)
def test_wrong_gates(enter, kind, words):
    model, batch = zoo_model("bert")
    with untouched(model), pytest.raises(kind, match=words), enter(model):
        run(model, batch)


@pytest.mark.parametrize("use", ["ablate", "prune"])
@pytest.mark.parametrize(
    ("heads", "kind", "words"),
    [
        ({("encoder", 0): [4]}, IndexError, r"encoder 0 has heads 0\.\.3, got 4.*from 0"),
        ({("encoder", 0): [-1]}, IndexError, r"heads 0\.\.3, got -1"),
        ({("encoder", 0): [1, 2, 1]}, ValueError, r"encoder 0\.1 is named twice"),
        ([("encoder", 0, 1), ("encoder", 0, 1)], ValueError, r"named twice"),
        ({("encoder", 0): [True]}, TypeError, r"whole number, got True"),
        ({("encoder", 0): [1.0]}, TypeError, r"whole number, got 1\.0"),
        ({("encoder", 0): ["1"]}, TypeError, r"whole number, got '1'"),
        ({("encoder", 0): 1}, TypeError, r"must be a list, got 1; write .*\[1\]"),
        ({("encoder", 0): "01"}, TypeError, r"must be a list, got '01'"),
        ({("encoder", 3): [0]}, KeyError, r"encoder', 3.*encoder 0\.\.2"),
        ({("cross", 0): [0]}, KeyError, r"cross.*encoder 0\.\.2"),
        ({("nonsense", 0): [0]}, KeyError, r"nonsense.*encoder 0\.\.2"),
        ({("nonsense", 0): []}, KeyError, r"nonsense.*encoder 0\.\.2"),
        ({"encoder": [0]}, KeyError, r"'encoder'.*kind, not a site.*\('encoder', 0\)"),
        ({0: [0]}, (KeyError, TypeError), r"encoder"),
        ([("encoder", 0)], TypeError, r"\(kind, layer, head\).*got \('encoder', 0\)"),
        ([3], TypeError, r"\(kind, layer, head\).*got 3"),
        ("encoder", TypeError, r"must look like .*got 'encoder'"),
        (3, TypeError, r"must look like .*got 3"),
        (torch.tensor([0, 1]), TypeError, r"must look like"),
        # one right and one wrong: nothing may have happened
        ({("encoder", 1): [0], ("encoder", 0): [9]}, IndexError, r"encoder 0 has heads 0\.\.3, got 9"),
    ],
)
def test_wrong_heads(use, heads, kind, words):
    model, batch = zoo_model("bert")

    def ablate():
        with ht.ablate(model, heads):
            run(model, batch)

    with untouched(model), pytest.raises(kind, match=words):
        ht.prune(model, heads) if use == "prune" else ablate()


@pytest.mark.parametrize("number", [torch.tensor(2), pytest.param(2, id="int")])
def test_heads_may_be_numbers_of_other_libraries(number):
    import numpy

    model, batch = zoo_model("bert")
    with ht.ablate(model, {("encoder", 0): [2]}):
        expected = run(model, batch)
    for head in (number, numpy.int64(2)):
        with ht.ablate(model, {("encoder", 0): [head]}):
            assert torch.equal(run(model, batch), expected)
        with ht.ablate(model, [("encoder", 0, head)]):
            assert torch.equal(run(model, batch), expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"by": "median"}, r"\"zero\", \"mean\" or \"resample\", got 'median'"),
        ({"by": "mean"}, r"reference=batch"),
        ({"by": "resample"}, r"reference=batch"),
        ({"by": "mean", "reference": []}, r"reference is empty"),
    ],
)
def test_wrong_ablation(arguments, words):
    model, batch = zoo_model("bert")
    with (
        untouched(model),
        pytest.raises(ValueError, match=words),
        ht.ablate(model, {("encoder", 0): [0]}, **arguments),
    ):
        run(model, batch)


def every_context(model, batch):
    """Each context manager, ready to enter, with its name."""
    sites = ht.sites(model)
    heads = {sites.all[0].key: [0]}
    return {
        "gates": ht.gates(model, open_gates(sites)),
        "zero": ht.ablate(model, heads),
        "mean": ht.ablate(model, heads, by="mean", reference=batch),
        "resample": ht.ablate(model, heads, by="resample", reference=batch),
        "maps": ht.record(model),
        "z": ht.record(model, want="z"),
    }


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
            ht.ablate(model, {("encoder", 0): [0]}, by="mean", reference=reference),
        ):
            pass


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"want": "attention"}, ValueError, r"maps, z, q, k, v; got .*attention"),
        ({"want": ()}, ValueError, r"maps, z, q, k, v"),
        ({"want": ("maps", "w")}, ValueError, r"maps, z, q, k, v"),
        ({"only": [("encoder", 9)]}, KeyError, r"encoder 0\.\.2"),
        ({"only": ["cross"]}, KeyError, r"'cross'.*encoder 0\.\.2"),
    ],
)
def test_wrong_recordings(arguments, kind, words):
    model, batch = zoo_model("bert")
    with untouched(model), pytest.raises(kind, match=words), ht.record(model, **arguments):
        run(model, batch)


def test_maps_that_were_not_asked_for():
    """Under sdpa no map exists: the answer says how to get one."""
    model, batch = zoo_model("bert")
    with ht.record(model, want="z") as r:
        run(model, batch)
    with pytest.raises(AttributeError, match=r"maps of encoder 0 was not recorded.*want=\('maps',\)"):
        r["encoder", 0].maps  # noqa: B018
    with pytest.raises(AttributeError, match=r"q of encoder 0 was not recorded"):
        r["encoder", 0].q  # noqa: B018
    with pytest.raises(AttributeError, match="nonsense"):
        r["encoder", 0].nonsense  # noqa: B018


def test_a_record_of_nothing():
    model, _ = zoo_model("bert")
    with ht.record(model) as r:
        with pytest.raises(KeyError, match=r"has not run.*inside the with"):
            r["encoder", 0]
        with pytest.raises(KeyError, match=r"encoder 0\.\.2"):
            r["encoder", 7]
        with pytest.raises(KeyError, match=r"kind, not a site"):
            r["encoder"]
    assert len(r) == 0


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


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("way", ["function", "method", "part"])
def test_a_compiled_model(context, way):
    model, batch = fresh("bert")
    if way == "method":
        model.compile(backend="eager")
    elif way == "part":
        model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0], backend="eager")
    given = torch.compile(model, backend="eager") if way == "function" else model
    plain = run(given, batch)
    with untouched(model), pytest.raises(RuntimeError, match=r"compiled before.*compile inside"):
        every_context(given, batch)[context].__enter__()
    assert torch.equal(run(given, batch), plain)
    torch._dynamo.reset()


def test_pruning_a_compiled_model():
    model, _ = fresh("bert")
    compiled = torch.compile(model, backend="eager")
    with untouched(model), pytest.raises(RuntimeError, match=r"compiled before"):
        ht.prune(compiled, {("encoder", 0): [0]})


def test_a_model_compiled_inside_the_context_is_gated():
    model, batch = fresh("bert")
    heads = {("encoder", 1): [0, 3]}
    with ht.ablate(model, heads):
        expected = run(model, batch)
        compiled = torch.compile(model, backend="eager")
        assert torch.allclose(run(compiled, batch), expected, atol=1e-6)
    torch._dynamo.reset()


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
        pytest.raises(ValueError, match=r"do not fit a run of 3 rows and 7 tokens"),
        ht.gates(model, {("encoder", 0): torch.ones(shape)}),
    ):
        run(model, batch)


@pytest.mark.parametrize("name", ["bloom", "gptj", "deberta_v2", "fsmt"])
def test_pruning_what_cannot_be_sliced(name):
    model, _ = zoo_model(name)
    key = ht.sites(model).all[0].key
    with untouched(model), pytest.raises(ValueError, match=r"AttentionInterface.*ablate"):
        ht.prune(model, {key: [0]})


def test_a_refused_cut_leaves_every_layer_whole():
    """One site that can be cut and one that cannot: neither may be touched."""
    model, _ = fresh("bert")
    attention = model.bert.encoder.layer[2].attention.self
    attention.mixing = torch.nn.Parameter(torch.ones(4, 4))
    with untouched(model), pytest.raises(ValueError, match=r"mixing.*mix heads"):
        ht.prune(model, {("encoder", 0): [0], ("encoder", 2): [0]})


def test_pruning_what_is_gone():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [0, 1, 2, 3], ("encoder", 1): [3]})
    with untouched(model), pytest.raises(ValueError, match=r"encoder 0 are cut already"):
        ht.prune(model, {("encoder", 0): [0]})
    with untouched(model), pytest.raises(IndexError, match=r"encoder 1 has heads 0\.\.2, got 3"):
        ht.prune(model, {("encoder", 1): [3]})


def test_unknown_ways_of_grouping():
    model, _ = zoo_model("llama")
    with untouched(model), pytest.raises(ValueError, match=r"\"ungroup\" or \"error\", got 'copy'"):
        ht.prune(model, {("decoder", 0): [0]}, gqa="copy")


@pytest.mark.parametrize(
    ("heads", "kind", "words"),
    [
        ([("encoder", 0, 9)], ValueError, r"encoder 0\.9 is not there"),
        ([("encoder", 0, -1)], ValueError, r"encoder 0\.-1 is not there"),
        ([("encoder", 9, 0)], KeyError, r"encoder 0\.\.2"),
        ([("encoder", 0, 1), ("encoder", 0, 1)], ValueError, r"named twice"),
        ([("encoder", 1, 0), ("encoder", 0, 9)], ValueError, r"not there"),
    ],
)
def test_wrong_replays(heads, kind, words):
    model, _ = zoo_model("bert")
    with untouched(model), pytest.raises(kind, match=words):
        ht.replay(model, heads)


def test_a_copy_made_inside_a_context_is_the_users_own_affair_but_the_model_is_restored():
    model, batch = zoo_model("bert")
    before = state(model)
    with ht.ablate(model, {("encoder", 0): [0]}):
        inside = run(model, batch)
        copied = copy.deepcopy(model)
    assert state(model)["hooks"] == before["hooks"]
    assert torch.equal(run(copied, batch), inside)


def test_a_context_cannot_be_entered_twice():
    model, batch = zoo_model("bert")
    context = ht.ablate(model, {("encoder", 0): [0]})
    with context:
        logits(model(**batch))
    with untouched(model), pytest.raises((RuntimeError, AttributeError)), context:
        pass
