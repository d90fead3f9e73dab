"""The numbers of notebooks/scaling.md are those of tools/bench/scaling_page.py, which computes them again."""

import re

import ablation as ablation_bench
import pytest
import relevance as relevance_bench
import taxonomy as taxonomy_bench
import torch
import transformers as tf
from scaling_page import (
    LENGTH,
    SHAPES,
    TEXTS,
    a_layer,
    for_ablation,
    for_gradient,
    in_words,
    memory_rows,
    roles,
    time_rows,
)

import headtools as ht


@pytest.fixture(scope="module")
def page(root) -> str:
    return (root / "notebooks" / "scaling.md").read_text("utf-8")


@pytest.mark.parametrize("make_rows", [memory_rows, time_rows])
def test_tables_are_what_the_arithmetic_gives(page, make_rows):
    wanted = make_rows()
    assert len(wanted) == len(SHAPES)
    for row in wanted:
        assert row in page, f"the page should have\n{row}"


def test_what_passes_keep(page):
    """By layer, token and feature, in bytes: of models of the large ones' proportions."""
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
        kept, traced = (a_layer(keeps, tf.LlamaForCausalLM, dtype) for keeps in (for_gradient, for_ablation))
        assert f"in {name} {kept:.0f} bytes for the gradient and {traced:.0f} for ablation" in page


def test_numbers_in_sentences(page):
    for words in in_words():
        assert words in page, words


def test_bounds_are_those_of_the_benches(page):
    assert f"{taxonomy_bench.BOUND:.2f} times" in page
    assert f"{relevance_bench.BOUNDS['attnlrp']:.2f} times a forward pass and a backward pass" in page
    assert f"{ablation_bench.BOUND:.2f} of the loop" in page
    assert f"{TEXTS:,} texts of {LENGTH} tokens" in page
    assert f"{roles()} roles" in page


def test_bfloat16_is_as_near_as_is_promised(page):
    from importance.test_bf16 import PROMISED  # compared there with what is measured

    promised = re.findall(r"^\| (\w+) \| ([\d.]+) % \| ([\d.]+) \|$", page, re.M)
    assert {name: (float(share) / 100, float(rank)) for name, share, rank in promised} == {
        name: pytest.approx(both) for name, both in PROMISED.items()
    }


def test_examples_name_what_there_is(page):
    for name in re.findall(r"\bht\.(\w+)", page):
        assert hasattr(ht, name), name
    for module in re.findall(r"-m (headtools[\w.]*)", page):
        assert __import__(module)
    for block in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M):
        compile(block, "scaling.md", "exec")
