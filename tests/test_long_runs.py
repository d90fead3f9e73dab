"""Thousands of batches take no more memory than a hundred, and contexts leave nothing behind."""

import gc

import psutil
import pytest
import torch
import transformers as tf

import headtools as ht

SHAPE = {"hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 4, "vocab_size": 9}
IDS = torch.tensor([[1, 2, 3]])

pytestmark = pytest.mark.full


def tiny(seed=0, kind=tf.BertForMaskedLM):
    torch.manual_seed(seed)
    return kind(tf.BertConfig(**SHAPE, max_position_embeddings=4)).eval()


def alive():
    """How many objects there are that could hold others, and how many of them are tensors."""
    gc.collect()
    objects = gc.get_objects()
    return len(objects), sum(issubclass(type(one), torch.Tensor) for one in objects)


def test_contexts_leave_nothing_behind():
    """Every context entered again and again: no tensor stays, and no object for each time."""
    model = tiny()
    (site,) = ht.sites(model)
    batch = {"input_ids": IDS, "labels": IDS}
    with ht.record(model, want="z") as seen:
        model(IDS)

    def work():
        with torch.no_grad(), ht.record(model), ht.gates(model, {site.key: torch.ones(2)}):
            model(IDS)
        with torch.no_grad(), ht.patch(model, [(*site.key, 0)], seen):
            model(IDS)
        with torch.no_grad(), ht.ablate(model, [(*site.key, 1)], replacement="mean", reference=batch):
            model(IDS)
        ht.gradient(model, batch)
        ht.ablation(model, batch, progress=False)

    for _ in range(10):
        work()
    objects, tensors = alive()
    for _ in range(20):
        work()
    assert alive()[1] == tensors
    assert alive()[0] < objects + 20


@pytest.mark.parametrize("n", [3_000, pytest.param(10_000, marks=pytest.mark.weekly)])
def test_memory_is_flat_over_thousands_of_batches(n):
    """A stream of batches that nobody keeps, through one call: statistics fold, so the peak stays where it was."""
    model = tiny()
    process, sizes = psutil.Process(), []

    def batches(count):
        for number in range(count):
            if number % (n // 10) == n // 20:
                gc.collect()
                sizes.append(process.memory_info().rss)
            yield {"input_ids": IDS}

    with torch.no_grad():
        scores = ht.confidence(model, batches(n), exclude=[])
    assert len(scores) == 2
    assert len(sizes) == 10
    # one number an example and head is kept, for the interval: n times 2 tensors of 2 numbers
    assert max(sizes) - sizes[0] < 4000 * n, [f"{size / 1e6:.0f} MB" for size in sizes]
