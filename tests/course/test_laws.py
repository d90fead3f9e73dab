"""Laws of course/ on models of any architecture, size, precision and side of padding, and on maps of any size."""

import re
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtools as ht

from ..heads.reference import untouched
from ..laws import law, logits
from ..random_models import drawn
from ..roles.test_laws import TEXT, sentences, tokenizers

ALONE = {"meta", "link", "br", "hr", "img", "input", "col", "path", "line", "rect", "circle", "use", "wbr", "source"}


class Balanced(HTMLParser):
    """Reads a page and fails where an element is not closed in its turn."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text = [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, _attributes):
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ALONE:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@law(6)
@given(drawn())
def test_a_page_on_any_model(one):
    plain = logits(one)
    with untouched(one.model):
        page = ht.report(one.model, [one.batch], orders=1, progress=False)
    assert torch.equal(logits(one), plain)
    assert set(page.missing) == {"roles", "words"}  # there are no sentences
    assert not re.search(r"\b(nan|inf)\b", " ".join(Balanced(page.html).text), re.I)
    assert all(example["map"] for head in page.heads["heads"] for example in head["examples"])


@law(4)
@given(drawn(TEXT, ("float32",)), tokenizers(), sentences(4, 6))
def test_a_page_with_roles(one, tokenizer, said):
    tokenizer.mask_token = "[UNK]"  # what a model that fills in needs
    with untouched(one.model):
        page = ht.report(one.model, said, tokenizer, orders=1, progress=False)
    assert "roles" not in page.missing
    Balanced(page.html)


@pytest.mark.full  # draws twenty pictures; test_hostile_pages.py draws some of every kind
@law(20)
@given(st.data())
def test_a_view_of_any_maps(data):
    layers, heads, queries, keys = (data.draw(st.integers(1, most), label="size") for most in (3, 4, 9, 9))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 9), label="seed"))
    maps = [torch.rand(heads, queries, keys, generator=draw).softmax(-1) for _ in range(layers)]
    words = st.text(st.characters(codec="utf-8"), max_size=6)
    tokens, others = (data.draw(st.lists(words, min_size=n, max_size=n), label="tokens") for n in (queries, keys))
    view = ht.attention_view(maps, tokens, key_tokens=others, alt="Drawn at random.")
    assert f"{layers} layer" in repr(view)
    Balanced(view.html)
