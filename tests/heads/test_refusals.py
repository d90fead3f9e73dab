"""What is refused: one table of (model, call, error, words); the model stays as it was."""

import copy

import pytest
import torch

import headtools as ht

from .reference import open_gates, untouched
from .zoo import fresh, run, zoo_model

ONES, FIRST = torch.ones(4), {("encoder", 0): [0]}


def inside(context):
    """A call that runs the model inside a context."""

    def call(model, batch):
        with context(model, batch):
            run(model, batch)

    return call


def gate(key, value):
    return inside(lambda model, batch: ht.gates(model, {key: value}))


def off(heads, **options):
    return inside(lambda model, batch: ht.ablate(model, heads, **options))


def recorded(**options):
    return inside(lambda model, batch: ht.record(model, **options))


def cut(heads, **options):
    return lambda model, batch: ht.prune(model, heads, **options)


def replayed(heads):
    return lambda model, batch: ht.replay(model, heads)


WRONG_HEADS = [
    ({("encoder", 0): [4]}, IndexError, r"encoder 0 has heads 0\.\.3, got 4.*from 0"),
    ({("encoder", 0): [-1]}, IndexError, r"heads 0\.\.3, got -1"),
    ({("encoder", 0): [1, 2, 1]}, ValueError, r"encoder 0\.1 is named twice"),
    ([("encoder", 0, 1), ("encoder", 0, 1)], ValueError, r"named twice"),
    ({("encoder", 0): [True]}, TypeError, r"integer, got True"),
    ({("encoder", 0): [1.0]}, TypeError, r"integer, got 1\.0"),
    ({("encoder", 0): ["1"]}, TypeError, r"integer, got '1'"),
    ({("encoder", 0): 1}, TypeError, r"must be a list, got 1; write .*\[1\]"),
    ({("encoder", 0): "01"}, TypeError, r"must be a list, got '01'"),
    ({("encoder", True): [0]}, TypeError, r"a layer is an integer, got True"),
    ({("encoder", 3): [0]}, KeyError, r"encoder', 3.*encoder 0\.\.2"),
    ({("cross", 0): [0]}, KeyError, r"cross.*encoder 0\.\.2"),
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
]
TABLE = [
    ("bert", gate(("encoder", 0), torch.ones(5)), ValueError, r"4 heads.*\(4,\), \(B, 4\).*got \(5,\)"),
    ("bert", gate(("encoder", 0), torch.ones(())), ValueError, r"got \(\)"),
    ("bert", gate(("encoder", 0), torch.ones(4, 7)), ValueError, r"got \(4, 7\)"),
    ("bert", gate(("encoder", 0), torch.ones(1, 1, 1, 4)), ValueError, r"got \(1, 1, 1, 4\)"),
    ("bert", gate(("encoder", 0), [1, 1, 1, 1]), TypeError, r"must be a tensor, got list.*torch\.tensor"),
    ("bert", gate(("encoder", 0), torch.ones(4, dtype=torch.long)), TypeError, r"int64.*\.float\(\)"),
    ("bert", gate(("encoder", 0), torch.tensor([1, float("nan"), 1, 1])), ValueError, r"NaN"),
    ("bert", gate(("encoder", 0), torch.tensor([1, float("inf"), 1, 1])), ValueError, r"infinity"),
    ("bert", gate(("nonsense", 0), ONES), KeyError, r"nonsense.*encoder 0\.\.2"),
    ("bert", gate(("encoder", -1), ONES), KeyError, r"encoder 0\.\.2"),
    ("bert", gate("encoder", ONES), KeyError, r"kind, not a site.*\('encoder', 0\)"),
    ("bert", inside(lambda model, batch: ht.gates(model, [ONES])), TypeError, r"must look like .*got list"),
    ("bert", gate(("encoder", 0), torch.ones(2, 4)), ValueError, r"in a forward pass of 3 rows and 7 tokens"),
    ("bert", gate(("encoder", 0), torch.ones(3, 6, 4)), ValueError, r"in a forward pass of 3 rows and 7 tokens"),
    *(("bert", call(heads), kind, words) for heads, kind, words in WRONG_HEADS for call in (off, cut)),
    ("bert", off(FIRST, replacement="median"), ValueError, r"\"resample\" or \"uniform\", got 'median'"),
    ("bert", off(FIRST, replacement="mean"), ValueError, r"reference=batch"),
    ("bert", off(FIRST, replacement="mean", reference=[]), ValueError, r"reference is empty"),
    ("bert", off(FIRST, replacement="mean", reference={"input_ids": torch.ones(0, 3).long()}), ValueError, "empty"),
    ("bert", off(FIRST, replacement="mean", reference="some text"), TypeError, r"a reference is a batch.*got str"),
    ("bert", off(FIRST, replacement="mean", reference=["some text"]), TypeError, r"a reference is a batch.*got list"),
    ("bloom", off({("decoder", 0): [0]}, replacement="uniform"), ValueError, "does not use transformers'"),
    ("gpt_oss", off({("decoder", 0): [0]}, replacement="uniform"), ValueError, "attention sinks"),
    ("bert", recorded(want="attention"), ValueError, r"maps, z, q, k, v, visible, rows; got .*attention"),
    ("bert", recorded(want=()), ValueError, r"maps, z, q, k, v"),
    ("bert", recorded(only=[("encoder", 9)]), KeyError, r"encoder 0\.\.2"),
    ("bert", recorded(only=["cross"]), KeyError, r"'cross'.*encoder 0\.\.2"),
    ("bert", recorded(only="not crossed"), KeyError, r"'crossed'.*encoder 0\.\.2"),
    ("bloom", recorded(want="visible"), ValueError, r"AttentionInterface, so its visible cannot be recorded"),
    ("bert", cut([]), ValueError, r"got no heads.*prune\(model, .*if heads"),
    ("bert", cut({("encoder", 1): []}), ValueError, r"got no heads"),
    ("llama", cut({("decoder", 0): [2]}, groups=True), IndexError, r"key-value heads 0\.\.1, got 2"),
    *((name, cut({("decoder", 0): [0]}), ValueError, r"AttentionInterface.*ablate") for name in ("bloom", "gptj")),
    ("deberta_v2", cut(FIRST), ValueError, r"AttentionInterface.*ablate"),
    ("deepseek_v3", cut({("decoder", 0): [0]}), ValueError, r"one latent vector"),
    ("bert", replayed([("encoder", 0, 9)]), ValueError, r"encoder 0\.9 is not there"),
    ("bert", replayed([("encoder", 0, -1)]), ValueError, r"encoder 0\.-1 is not there"),
    ("bert", replayed([("encoder", 9, 0)]), KeyError, r"encoder 0\.\.2"),
    ("bert", replayed([("encoder", 0, 1), ("encoder", 0, 1)]), ValueError, r"named twice"),
    ("bert", replayed([("encoder", 1, 0), ("encoder", 0, 9)]), ValueError, r"not there"),
]


@pytest.mark.parametrize(("name", "call", "kind", "words"), TABLE)
def test_refused(name, call, kind, words):
    model, batch = zoo_model(name)
    with untouched(model), pytest.raises(kind, match=words):
        call(model, batch)


CONTEXTS = {
    "gates": lambda model, batch: ht.gates(model, open_gates(ht.sites(model))),
    "zero": lambda model, batch: ht.ablate(model, {ht.sites(model).all[0].key: [0]}),
    "mean": lambda model, batch: ht.ablate(model, {ht.sites(model).all[0].key: [0]}, "mean", zoo_model("bert")[1]),
    "maps": lambda model, batch: ht.record(model),
    "z": lambda model, batch: ht.record(model, want="z"),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_empty_batches_and_rows_of_padding(context):
    model, batch = zoo_model("bert")
    padded = copy.deepcopy(batch)
    padded["attention_mask"][1] = 0
    for bad, words in (
        ({key: value[:0] for key, value in batch.items()}, r"batch is empty.*\(0, \d\).*pass"),
        ({key: value[:, :0] for key, value in batch.items()}, r"empty.*\(3, 0\)"),
        (padded, r"attention_mask: rows \[1\] are all padding.*drop"),
    ):
        with untouched(model), pytest.raises(ValueError, match=words):
            inside(CONTEXTS[context])(model, bad)


def test_training_mode_of_a_model_or_of_a_part_of_it():
    """model.training is the root's own flag: a frozen root with a training layer has dropout all the same."""
    model, batch = fresh("bert")
    for part in (model.bert.encoder.layer[1], model):
        part.train()
        with untouched(model), pytest.raises(ValueError, match=r"training mode.*eval\(\)"):
            recorded()(model, batch)
    recorded(training=True)(model, batch)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("shape", [(3, 4), (3, 7, 4)])
def test_beam_search_with_gates_per_example(name, shape):
    model, batch = zoo_model(name, "left")
    batch = {key: value for key, value in batch.items() if key != "decoder_input_ids"}
    gates = ht.gates(model, {("decoder", 0): torch.ones(shape)})
    with untouched(model), pytest.raises(ValueError, match=r"Beam search.*\(4,\)"), gates:
        model.generate(**batch, num_beams=2, max_new_tokens=3, do_sample=False, pad_token_id=0)


def test_a_model_inside_data_parallel():
    """It hides whether the model reads and writes: labels were neither moved nor made the decoder's input."""
    model, batch = zoo_model("bert")
    wrapped = torch.nn.DataParallel(model)
    for call in (off(FIRST), recorded(), cut(FIRST), lambda m, b: ht.gradient(m, b | {"labels": b["input_ids"]})):
        with untouched(model), pytest.raises(TypeError, match=r"got a DataParallel.*the model inside: model\.module"):
            call(wrapped, batch)


def test_what_was_not_recorded():
    """Under sdpa no map exists: the answer says how to get one."""
    model, batch = zoo_model("bert")
    with ht.record(model, want="z") as r:
        with pytest.raises(KeyError, match=r"has not run.*inside the with"):
            r["encoder", 0]
        run(model, batch)
    with pytest.raises(KeyError, match=r"encoder 0\.\.2"):
        r["encoder", 7]
    with pytest.raises(KeyError, match=r"kind, not a site"):
        r["encoder"]
    for name, words in (
        ("maps", r"maps of encoder 0 was not recorded.*want=\('maps',\)"),
        ("q", "q of encoder 0 was not"),
        ("no", "no"),
    ):
        with pytest.raises(AttributeError, match=words):
            getattr(r["encoder", 0], name)


def test_a_refused_cut_leaves_every_layer_whole():
    """One site that can be cut and one that cannot: neither may be touched."""
    model, _ = fresh("bert")
    attention = model.bert.encoder.layer[2].attention.self
    attention.mixing = torch.nn.Parameter(torch.ones(4, 4))
    with untouched(model), pytest.raises(ValueError, match=r"mixing.*mix heads"):
        ht.prune(model, {("encoder", 0): [0], ("encoder", 2): [0]})


def test_pruning_what_is_gone():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [0, 1, 2, 3], ("encoder", 1): [0]})
    with untouched(model), pytest.raises(ValueError, match=r"encoder 0 are already pruned"):
        ht.prune(model, {("encoder", 0): [0]})
    with untouched(model), pytest.raises(IndexError, match=r"heads 0\.\.2, got 3 .*others were cut.*\[1, 2, 3\]"):
        ht.prune(model, {("encoder", 1): [3]})
