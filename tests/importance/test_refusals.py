"""What importance refuses, and in which words: (call, error, words)."""

import copy

import pytest
import torch
from transformers import AttentionInterface

import headtools as ht
from headtools.heads.scores import HeadScores

from ..heads.reference import untouched
from ..heads.zoo import zoo_model
from .test_ablation import scored
from .test_gradient import labelled

MODEL, BATCH = labelled("bert")
LABELS = BATCH["labels"]
TEXT = zoo_model("bert")[1]  # without labels
NONE = torch.where(torch.arange(3)[:, None] == 1, -100, LABELS)
PADDING = BATCH["attention_mask"] * torch.tensor([[1], [0], [1]])
A, B = ("encoder", 0, 1), ("encoder", 1, 2)


def gradient(batches=BATCH, loss=None, **more):
    return lambda: ht.gradient(MODEL, batches, loss, **more)


def ablation(batches=TEXT, loss=scored, **more):
    return lambda: ht.ablation(MODEL, batches, loss, progress=False, **more)


def interaction(pairs, batches=TEXT, loss=scored, **more):
    return lambda: ht.interaction(MODEL, batches, pairs, loss, progress=False, **more)


def relevance(score=None, batches=BATCH, **more):
    return lambda: ht.relevance(MODEL, batches, score, **more)


def first(outputs, _batch):
    return outputs.logits[:, 0].logsumexp(-1)


def nan_in_one(outputs, batch):
    return first(outputs, batch) * torch.tensor([1.0, float("nan"), 1.0])


def hidden_softmax():
    """BERT with an attention function of one's own, in which no softmax of torch runs."""

    def kernel(_module, q, k, v, _mask, scaling, **_more):
        weights = (q @ k.mT * scaling).exp()
        return (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2), None

    AttentionInterface.register("kernel", kernel)
    model = copy.deepcopy(MODEL)
    model.set_attn_implementation("kernel")
    return model


REFUSED = {
    "no label": (gradient(BATCH | {"labels": NONE}), ValueError, r"examples \[1\] of a batch have no label"),
    "labels of another type": (gradient(BATCH | {"labels": LABELS.float()}), ValueError, "labels that are not classes"),
    "labels of another form": (gradient(BATCH | {"labels": LABELS[:, :3]}), ValueError, "neither a text nor a class"),
    "no labels": (gradient(TEXT), ValueError, 'has no "labels"'),
    "no labels, ablation": (ablation(loss=None), ValueError, 'has no "labels"'),
    "a used-up generator": (gradient(iter(())), ValueError, "got no batches"),
    "no batches": (ablation([]), ValueError, "got no batches"),
    "no batches, confidence": (lambda: ht.confidence(MODEL, []), ValueError, "got no batches"),
    "tensors": (gradient([BATCH["input_ids"]]), TypeError, "a batch is a dict"),
    "tensors, ablation": (ablation([torch.ones(2)]), TypeError, "a batch is a dict"),
    "a row of padding": (gradient(BATCH | {"attention_mask": PADDING}), ValueError, "all padding"),
    "per token": (gradient(per="token"), ValueError, "per is one of"),
    "per token, ablation": (ablation(per="token"), ValueError, 'per is "example" or "batch", got \'token\''),
    "normalised by what": (gradient(normalise=True), ValueError, "normalise None or"),
    "a softmax of another slope": (gradient(softmax="x"), ValueError, 'softmax is "slope" or "secant"; got \'x\''),
    "a softmax in a kernel": (
        lambda: ht.gradient(hidden_softmax(), BATCH, softmax="secant"),
        ValueError,
        "softmax of encoder 0 is hidden in a kernel",
    ),
    "signed positions": (gradient(per="position", signed=True), ValueError, "add up to that of their example"),
    "an unknown site": (gradient(sites=["cross"]), KeyError, "no 'cross' attention"),
    "an unknown site, ablation": (ablation(sites=["cross"]), KeyError, "no 'cross' attention"),
    "no site": (gradient(sites=[]), ValueError, "leaves no heads"),
    "a compiled model": (
        lambda: ht.gradient(torch.compile(copy.deepcopy(MODEL)), BATCH),
        RuntimeError,
        "was compiled before",
    ),
    "one loss for all": (gradient(TEXT, lambda o, b: first(o, b).mean()), ValueError, "one number per example"),
    "one loss for all, ablation": (ablation(loss=lambda o, b: scored(o, b).mean()), ValueError, 'write per="batch"'),
    "a list": (gradient(TEXT, lambda o, b: first(o, b).tolist()), ValueError, "one number per example"),
    "a loss without a slope": (gradient(TEXT, lambda o, b: first(o, b).detach()), ValueError, "any selected head"),
    "losses of others": (
        gradient(TEXT, lambda o, b: first(o, b)[:2]),
        ValueError,
        'its rows are not the examples.*write per="batch"',
    ),
    "one score for all": (relevance(lambda o, b: first(o, b).mean()), ValueError, "one number per example"),
    "a list of scores": (relevance(lambda o, b: first(o, b).tolist()), ValueError, "one number per example"),
    "a score without a slope": (relevance(lambda o, b: first(o, b).detach()), ValueError, "not depend on the model"),
    "scores of others": (relevance(lambda o, b: first(o, b)[:2]), ValueError, "its rows are not the examples"),
    "a score of 0": (relevance(lambda o, b: first(o, b) * 0), ValueError, "no relevance to distribute"),
    "a score of one argument": (
        relevance(lambda outputs: outputs.logits),
        TypeError,
        r"a score is called as score\(outputs, batch\)",
    ),
    "no step": (relevance(None, BATCH | {"labels": NONE}), ValueError, r"examples \[1\] have no step to explain"),
    "rules": (relevance(rules="deeplift"), ValueError, "rules is one of attnlrp"),
    "normalised by head": (relevance(normalise="head"), ValueError, "normalise is None or"),
    "NaN": (gradient(TEXT, nan_in_one), ValueError, r"loss of examples \[1\] is NaN"),
    "NaN, relevance": (relevance(nan_in_one), ValueError, r"score of examples \[1\] is NaN"),
    "NaN, ablation": (ablation(loss=lambda o, b: scored(o, b) * float("nan")), ValueError, "is no finite number"),
    "a form of loss": (gradient(loss="lm"), ValueError, r'"causal" or "aligned"; got \'lm\''),
    "a replacement": (ablation(replacement="nothing"), ValueError, 'replacement must be "zero"'),
    "no reference": (ablation(replacement="mean", reference=[]), ValueError, "the reference is empty"),
    "ids for no ids": (lambda: ht.confidence(*zoo_model("vit"), exclude=[3]), ValueError, "the batch has no ids for"),
    "no interface": (lambda: ht.confidence(*zoo_model("bloom")), ValueError, "does not use transformers' Attention"),
    "words for ids": (lambda: ht.confidence(MODEL, TEXT, exclude=["a"]), TypeError, "exclude takes token ids"),
    "a loss of one": (gradient(loss=lambda outputs: 0), TypeError, r"called as loss\(outputs, batch\), and <lambda>"),
    "ids of another model": (
        lambda: ht.gradient(MODEL, {"input_ids": BATCH["input_ids"] + 1000, "labels": BATCH["input_ids"]}),
        ValueError,
        r"input_ids run from 10\d\d to 1\d+, and the model knows 0 to 95: use the tokenizer",
    ),
    "all excluded": (
        lambda: ht.confidence(MODEL, BATCH, exclude=list(range(96))),
        ValueError,
        "every query is padding or excluded",
    ),
    "words for logits": (
        lambda: ht.direct_logit_attribution(*zoo_model("llama"), ["a", "b"]),
        TypeError,
        "tokens are ids, got .*convert_tokens_to_ids",
    ),
    "too many tokens": (
        lambda: ht.confidence(MODEL, {"input_ids": torch.ones(1, MODEL.config.max_position_embeddings + 1).long()}),
        ValueError,
        r"the texts have \d+ tokens, and BertForMaskedLM has \d+ positions: tokenizer\(texts, truncation=True",
    ),
    "no pairs": (interaction([]), ValueError, "got no pairs"),
    "a head with itself": (interaction([(A, A)]), ValueError, "twice: name another"),
    "one head": (interaction([(A,)]), TypeError, "a pair is two heads"),
    "an unknown layer": (interaction([(A, ("encoder", 9, 1))]), KeyError, "no site"),
    "an unknown head": (interaction([(A, ("encoder", 1, 9))]), IndexError, r"heads 0\.\.3"),
    "a pair twice": (interaction([(A, B), (B, A)]), ValueError, "given twice"),
    "pairs of no batches": (interaction([(A, B)], []), ValueError, "got no batches"),
    "a loss without a bend": (
        interaction([(A, B)], loss=lambda o, b: scored(o, b).detach(), predict=True),
        ValueError,
        "depends on no head of the pairs",
    ),
    "rows that differ": (
        lambda: ht.gradient(MODEL, BATCH).minus(HeadScores({A[:2]: torch.ones(4)})),
        ValueError,
        "needs rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, error, words = REFUSED[name]
    with untouched(MODEL), pytest.raises(error, match=words):
        call()
