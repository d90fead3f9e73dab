"""The operations that ``counts.py`` counts by hand are those that torch counts."""

import counts
import gradient
import pruned
import pytest
import scaling
import subjects
import torch
from torch.utils.flop_counter import FlopCounterMode

SIZE = subjects.Size(3, 32, 4, 48, 2, 6)


def counted(work) -> float:
    """Multiplications with their additions, by torch; attention as plain products, which it can count."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 2


@pytest.fixture(params=subjects.MAKERS)
def case(request: pytest.FixtureRequest) -> tuple[str, subjects.Subject]:
    subject = subjects.make(request.param, SIZE)
    subject.model.set_attn_implementation("eager")
    return request.param, subject


def test_forward_and_gradient(case):
    kind, subject = case
    tokens = SIZE.rows * SIZE.tokens
    passed = counted(lambda: gradient.plain(subject))
    assert passed == pytest.approx(tokens * counts.forward(kind, SIZE), rel=0.001)
    both = counted(lambda: gradient.activations(subject)) / passed
    assert both == pytest.approx(counts.gradient(kind, SIZE), rel=0.001)
    assert counted(lambda: gradient.ours(subject)) / passed < both + counts.looked(kind, SIZE) + 0.1
    assert counted(lambda: gradient.training(subject)) / passed > 1.2 * both


def test_pruned(case):
    kind, subject = case
    passed = counted(lambda: gradient.plain(subject))
    model = pruned.without(subject, 0.5)
    smaller = subjects.Subject(subject.name, model, subject.batch, subject.labels, SIZE)
    left = counted(lambda: gradient.plain(smaller)) / passed
    assert left == pytest.approx(counts.pruned(kind, SIZE, 0.5), rel=0.001)


@pytest.mark.parametrize("kind", ["bert", "marian"])
def test_exact_ablation_needs_what_is_counted_and_a_few_passes_that_check_it(kind: str):
    size = subjects.Size(6, 32, 4, 128, 1, 4)
    subject = subjects.make(kind, size)
    passed = counted(lambda: gradient.plain(subject))
    needed, bound = counted(lambda: scaling.ablation(subject)) / passed, counts.ablation(kind, size)
    assert 0.98 * bound < needed < bound + 6.5


@pytest.mark.parametrize("kind", subjects.MAKERS)
def test_a_model_is_the_same_whenever_it_is_made(kind: str):
    torch.manual_seed(3)
    first = subjects.make(kind, subjects.TINY)
    torch.manual_seed(4)
    again = subjects.make(kind, subjects.TINY)
    assert torch.equal(first.model(**first.batch).logits, again.model(**again.batch).logits)
    assert first.part(1).batch["input_ids"].shape == (1, 6)
