"""What the tests of laws share: how examples are drawn, and what a model of any family says.

The examples are the same in every run (``derandomize``): a law that fails here fails everywhere. With
HEADTOOLS_LAWS=half, as ``make test`` has it, the first half of them is tried.
"""

import os

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import headtools as ht


def law(examples):
    if os.environ.get("HEADTOOLS_LAWS") == "half":
        examples = max(1, examples // 2)
    phases = (Phase.generate, Phase.shrink)
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=quiet,
    )


def logits(one):
    return logits_of(one.model, one)


def logits_of(model, one):
    with torch.no_grad():
        return model(**{name: value for name, value in one.batch.items() if name != "labels"}).logits


def real(one, values):
    """The rows of logits that belong to real tokens."""
    mask = one.batch.get("attention_mask")
    return values[mask.bool()] if mask is not None and values.shape[:2] == mask.shape else values


def close(one, left, right, share=None):
    left, right = left.double(), right.double()
    assert left.shape == right.shape
    assert left.isfinite().all()
    assert right.isfinite().all()
    return bool((left - right).abs().max() <= (share or one.close) * max(1.0, right.abs().max().item()))


def some(data, model):
    """Any heads of a model, at least one: {key: [heads]}."""
    every = [(*site.key, head) for site in ht.sites(model) for head in range(site.heads)]
    picked = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True), label="heads")
    chosen = {}
    for *key, head in picked:
        chosen.setdefault(tuple(key), []).append(head)
    return chosen
