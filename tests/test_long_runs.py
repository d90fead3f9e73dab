"""Ten thousand batches take no more memory than a hundred; two threads with two models do not meet."""

import gc
import threading

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


def test_memory_is_flat_over_ten_thousand_batches():
    """A stream of batches that nobody keeps, through one call: statistics fold, so the peak stays where it was."""
    model = tiny()
    process, sizes = psutil.Process(), []

    def batches(count):
        for number in range(count):
            if number % 1000 == 500:
                gc.collect()
                sizes.append(process.memory_info().rss)
            yield {"input_ids": IDS}

    with torch.no_grad():
        scores = ht.confidence(model, batches(10_000), exclude=[])
    assert len(scores) == 2
    assert len(sizes) == 10
    # one number an example and head is kept, for the interval: 10,000 times 2 tensors of 2 numbers
    assert max(sizes) - sizes[0] < 40e6, [f"{size / 1e6:.0f} MB" for size in sizes]


def test_two_threads_with_two_models():
    """Nothing is shared but two registered names: each thread gets what it gets alone."""
    models = [tiny(seed) for seed in range(2)]

    def work(model, number):
        batch = {"input_ids": IDS + number, "labels": IDS + number}
        with torch.no_grad(), ht.record(model) as seen, ht.ablate(model, [("encoder", 0, number)]):
            logits = model(IDS + number).logits
        slopes = ht.gradient(model, batch, signed=True).rows["encoder", 0]
        rises = ht.ablation(model, batch, progress=False).rows["encoder", 0]
        shares = ht.propagate(model, batch, rules="cp").parts["encoder", 0]
        return [logits, seen["encoder", 0].maps, slopes, rises, shares]

    alone = [work(model, number) for number, model in enumerate(models)]
    wrong, barrier = [], threading.Barrier(2)

    def repeat(number):
        try:
            barrier.wait()
            for _ in range(25):
                for one, other in zip(alone[number], work(models[number], number), strict=True):
                    if not torch.equal(one, other):
                        wrong.append(number)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    before = [vars(module).keys() for module in models[0].modules()]
    assert not any(name.startswith("_headtools") for names in before for name in names)


def test_one_model_in_two_threads_is_given_back_whole():
    """The second thread is refused, by name; the model is left as it was."""
    model = tiny()
    plain = model(IDS).logits
    barrier, problems = threading.Barrier(2), []

    def repeat(head):
        try:
            barrier.wait()
            for _ in range(40):
                with torch.no_grad(), ht.ablate(model, [("encoder", 0, head)]):
                    model(IDS)
        except RuntimeError as error:
            problems.append(str(error))

    threads = [threading.Thread(target=repeat, args=(head,)) for head in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(problems) <= 1
    assert all("is inside ablate() in thread" in problem for problem in problems)
    assert torch.equal(model(IDS).logits, plain)
    assert not any(module._forward_pre_hooks for module in model.modules())
