"""Bad input: an error that says what came and what to do, and a model as it was before."""

import pytest
import torch

import headtools as ht

from .reference import untouched
from .zoo import fresh, run, zoo_model

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
        ({("encoder", 0): [True]}, TypeError, r"integer, got True"),
        ({("encoder", 0): [1.0]}, TypeError, r"integer, got 1\.0"),
        ({("encoder", 0): ["1"]}, TypeError, r"integer, got '1'"),
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
        ({"replacement": "median"}, r"\"zero\", \"mean\", \"resample\" or \"uniform\", got 'median'"),
        ({"replacement": "mean"}, r"reference=batch"),
        ({"replacement": "resample"}, r"reference=batch"),
        ({"replacement": "mean", "reference": []}, r"reference is empty"),
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
    with untouched(model), pytest.raises(ValueError, match=r"encoder 0 are already pruned"):
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
