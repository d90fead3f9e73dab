"""What sparse/ refuses, and in which words; the model is left as it was."""

import pytest
import torch

import headtools as ht
from headtools.sparse.hard_concrete import HardConcrete
from headtools.sparse.merge import disjoint_pairs, head_similarity

from ..heads.reference import untouched
from ..heads.zoo import fresh

PAIR = [(("encoder", 0, 0), ("encoder", 0, 1))]
HEADS = [("encoder", layer, head) for layer in range(3) for head in range(4)]
FIRST, V = ("encoder", 0, 0), torch.ones(32)
GATES = HardConcrete({("encoder", 0): 4, ("cross", 1): 3})


def concrete(**options):
    return lambda _model, _batch: HardConcrete(**{"over": {("encoder", 0): 1}} | options)


def fit(**options):
    def call(model, batch):
        given = {"batches": [batch], "penalty": 0.1, "loss": each, "weights": None, "steps": 2, "progress": False}
        ht.fit_gates(model, **given | options)

    return call


def curve(**options):
    given = {"order": HEADS, "evaluate": lambda model: 0.5, "keep": [1]} | options
    return lambda model, _batch: ht.curve(model, **given)


def edit(head=FIRST, **options):
    return lambda model, _batch: ht.edit(model, head, **options).__enter__()


def merge(groups, **options):
    return lambda model, batch: ht.merge(model, groups, **{"batches": batch} | options)


def refit(heads):
    return lambda model, batch: ht.refit(model, heads, batch)


def each(outputs, _batch):
    return outputs.logits.square().mean((1, 2))


def of(name, key, call):
    """A call with another model than BERT."""

    def instead(_model, _batch):
        model, batch = fresh(name)
        with untouched(model):
            call(key)(model, batch)

    return instead


def pair_of(key):
    return merge([((*key, 0), (*key, 1))])


def never():
    raise AssertionError("a batch was asked for before the model was looked at")
    yield


def tied(model, _batch):
    layers = model.bert.encoder.layer
    layers[1].attention.output.dense.weight = layers[0].attention.output.dense.weight
    ht.edit(model, FIRST, remove=V).__enter__()


def silent(model, _batch):
    ht.prune(model, {("encoder", 0): range(4)})
    ht.edit(model, FIRST, remove=V).__enter__()


def whole_numbers(model, _batch):
    layer = model.bert.encoder.layer[0].attention.output.dense
    layer.weight = torch.nn.Parameter(layer.weight.mul(9).to(torch.int8), requires_grad=False)
    ht.edit(model, FIRST, remove=V).__enter__()


def made_without_gradients(_model, _batch):
    with torch.inference_mode():
        model, batch = fresh("bert")
    ht.recover(model, [batch | {"labels": batch["input_ids"]}], steps=1, progress=False)


def eight_pairs(model, batch):
    disjoint_pairs(head_similarity(model, [batch]), 8)


DECODER = ("decoder", 0)
REFUSALS = [
    ("temperature", concrete(temperature=0.0), ValueError, "above 0"),
    ("temperature NaN", concrete(temperature=float("nan")), ValueError, "above 0"),
    ("stretch below", concrete(stretch=(0.0, 1.1)), ValueError, "reach beyond"),
    ("stretch above", concrete(stretch=(-0.1, 1.0)), ValueError, "reach beyond"),
    ("start NaN", concrete(start=float("nan")), ValueError, "NaN"),
    ("start shape", concrete(start={("encoder", 0): torch.zeros(3)}), ValueError, "start must give"),
    ("no sites", concrete(over=[]), ValueError, "no heads"),
    ("no heads", concrete(over={("encoder", 0): 0}), ValueError, "no heads"),
    ("per token", lambda m, b: GATES.sample(per="token"), ValueError, "batch"),
    ("no rows", lambda m, b: GATES.sample(per="example"), ValueError, "no number of examples"),
    ("split", lambda m, b: GATES.split(torch.zeros(6)), ValueError, "7 gates"),
    ("fit: penalty", fit(penalty=-1), ValueError, "at least 0"),
    ("fit: penalty NaN", fit(penalty=float("nan")), ValueError, "at least 0"),
    ("fit: penalties", fit(penalty=[0.1, 0.2]), ValueError, "once for each"),
    ("fit: loss", fit(loss=lambda outputs: outputs.loss), TypeError, r"called as loss\(outputs, batch\)"),
    ("fit: steps", fit(steps=0), ValueError, "1 or more"),
    ("fit: decay", fit(decay=-0.1), ValueError, "decay a fraction"),
    ("fit: no encoder", fit(weights="encoder"), ValueError, "no encoder of its own"),
    ("fit: weights", fit(weights=["nowhere"]), ValueError, "no weight of BertForMaskedLM matches"),
    ("fit: sites", fit(sites="cross"), KeyError, "cross"),
    ("fit: per", fit(per="token"), ValueError, "batch"),
    ("fit: no batches", fit(batches=[]), ValueError, "got no batches, or a generator"),
    ("fit: generator", lambda m, b: fit(batches=iter([b]))(m, b), ValueError, "got no batches, or a generator"),
    ("fit: words", fit(batches=["words"]), TypeError, "a batch is a dict.*got str"),
    ("fit: two losses", fit(loss=lambda out, b: each(out, b)[:2]), ValueError, "one number per example"),
    ("fit: no tensor", fit(loss=lambda out, b: 1.0), TypeError, "expected a tensor"),
    ("fit: no labels", fit(loss=None), TypeError, "labels"),
    ("fit: frozen", lambda m, b: fit(weights=["bert.emb"])(m.requires_grad_(False), b), ValueError, "are frozen, bert"),
    ("recover: inference", made_without_gradients, RuntimeError, "[Ii]nference"),
    ("curve: count", curve(keep=[13]), ValueError, "the order has 12 heads, so it cannot keep 13"),
    ("curve: below", curve(keep=[-1]), ValueError, "cannot keep -1"),
    ("curve: fraction", curve(keep=[1.5]), ValueError, "a fraction lies between"),
    ("curve: nothing", curve(keep=[]), ValueError, "nothing to measure"),
    ("curve: text", curve(evaluate=lambda m: "good"), TypeError, "got str"),
    ("curve: matrix", curve(evaluate=lambda m: torch.zeros(2, 2)), TypeError, r"got Tensor of shape \(2, 2\)"),
    ("curve: pair", curve(evaluate=lambda m: (0.1, 0.2)), TypeError, "got tuple"),
    ("curve: NaN", curve(evaluate=lambda m: float("nan")), ValueError, "returned NaN"),
    ("curve: no scores", curve(evaluate=lambda m: torch.zeros(0)), ValueError, "no scores"),
    ("curve: some NaN", curve(evaluate=lambda m: torch.tensor([0.5, float("nan")])), ValueError, "NaN"),
    ("curve: head", curve(order=[("encoder", 0, 9)]), IndexError, "heads 0..3"),
    ("curve: twice", curve(order=[FIRST, FIRST]), ValueError, "named twice"),
    ("curve: order", curve(order={("encoder", 0): [1]}), TypeError, "an order is scores or a list"),
    ("greedy", lambda m, b: ht.greedy_order(m, None, 0), ValueError, "step is the number"),
    ("cut_cost", lambda m, b: ht.cut_cost(m, HEADS, {}), ValueError, "got no corpora"),
    ("edit: head", edit(("encoder", 0, 4), remove=V), IndexError, r"heads 0\.\.3"),
    ("edit: layer", edit(("encoder", 7, 0), remove=V), KeyError, "encoder"),
    ("edit: name", edit(("encoder", 0), remove=V), TypeError, r"\(kind, layer, head\)"),
    ("edit: width", edit(remove=V[:8]), ValueError, r"got .*\(8,\).*writes vectors of 32 numbers"),
    ("edit: zero", edit(remove=V * 0), ValueError, "has no direction"),
    ("edit: NaN", edit(remove=V * float("nan")), ValueError, "has no direction"),
    ("edit: empty", edit(remove=torch.zeros(0, 32)), ValueError, r"got directions of shape \(0, 32\)"),
    ("edit: integers", edit(remove=V.long()), TypeError, "got torch.int64"),
    ("edit: list", edit(remove=[1.0] * 32), TypeError, "got list"),
    ("edit: weights", whole_numbers, (TypeError, ValueError), "int8|floating-point"),
    ("edit: tied", tied, ValueError, r"they are tied: .*layer\.0.* and .*layer\.1"),
    ("edit: silent", silent, ValueError, "all heads of this layer are cut"),
    ("merge: nothing", merge([]), ValueError, "got no groups"),
    ("merge: a head", merge([FIRST]), TypeError, "got the head .*: write merge"),
    ("merge: one", merge([[FIRST]]), ValueError, "two or more heads of one layer"),
    ("merge: layers", merge([(FIRST, ("encoder", 1, 0))]), ValueError, "two or more heads of one layer"),
    ("merge: twice", merge([(FIRST, FIRST)]), ValueError, "named twice"),
    ("merge: overlap", merge([*PAIR, (("encoder", 0, 1), ("encoder", 0, 2))]), ValueError, "named twice"),
    ("merge: head", merge([(FIRST, ("encoder", 0, 4))]), IndexError, r"heads 0\.\.3"),
    ("merge: layer", merge([(("encoder", 7, 0), ("encoder", 7, 1))]), KeyError, "encoder"),
    ("merge: shared", of("llama", DECODER, pair_of), ValueError, "share keys and values"),
    ("merge: latent", of("deepseek_v3", DECODER, pair_of), ValueError, "latent"),
    ("merge: bloom", of("bloom", DECODER, pair_of), ValueError, "AttentionInterface"),
    ("merge: no batches", merge(PAIR, batches=[]), ValueError, "got no batches"),
    ("merge: words", merge(PAIR, batches=["the dog"]), TypeError, "a batch is a dict"),
    ("refit: nothing", refit({}), ValueError, "got no heads"),
    ("refit: all", refit({("encoder", 1): range(4)}), ValueError, "all heads of encoder 1 would go"),
    ("refit: bloom", lambda m, b: ht.refit(fresh("bloom")[0], {DECODER: [0]}, never()), ValueError, "Attention"),
    ("similarity: pairs", eight_pairs, ValueError, "got n=8; expected at most 6"),
]
CHANGED_BY_THE_CALL = ("fit: frozen", "edit: weights", "edit: tied", "edit: silent")


@pytest.mark.parametrize(("name", "call", "error", "words"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_refused(name, call, error, words):
    model, batch = fresh("bert")
    if name in CHANGED_BY_THE_CALL:
        with pytest.raises(error, match=words):
            call(model, batch)
    else:
        with untouched(model), pytest.raises(error, match=words):
            call(model, batch)
