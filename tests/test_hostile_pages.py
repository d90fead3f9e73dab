"""Whatever a token, a name or a message holds, pages show it as text: no element and no attribute comes from data."""

import json
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers

import headtools as ht
from headtools._report.page import Section, page, paragraph, table
from headtools.course import plot
from headtools.course.check import CheckResult
from headtools.course.claims import Others
from headtools.course.plain import plain

from .course.test_report import assert_runs_one_script
from .hostile import HOSTILE, Skeleton


def line():
    fig, ax = plt.subplots(figsize=(1, 1))
    ax.plot([0, 1])
    return fig


def of_figure(text):
    return ht.figure(line(), claim=f"A claim {text}", alt=f"There is {text} to see").html


def others(text):
    row = {"row": "3.1", "lesson": "03", "claim": f"c {text}", "source": f"s {text}"}
    return Others((row | {"cited": ["wrong", f"w {text}"], "here": ["right", f"m {text}"]},))


def of_ledger(text):
    return others(text)._repr_mimebundle_()["text/html"]


def of_check(text):
    return CheckResult(f"n {text}", f"t {text}", "not yet", f"h {text}")._repr_mimebundle_()["text/html"]


def of_explore(text):
    return ht.explore(lambda n: (line(), f"text {text}"), n=(1, 2), alt=f"alt {text}")._figure()


def of_view(text):
    maps, options = [torch.eye(2).expand(2, 2, 2)], {"alt": f"alt {text}", "claim": f"c {text}"}
    return ht.attention_view(maps, ["a", f"b {text}"], **options).html


def of_page(text):
    frame = pd.DataFrame({f"c {text}": [f"v {text}", 0.5], "d": [None, 1]})
    measured = Section("n", "t", paragraph(text) + table(frame, text))
    return page(f"title {text}", f"lead {text}", [Section(f"n {text}", f"t {text}", missing=f"m {text}"), measured])


WRITERS = (of_figure, of_ledger, of_check, of_explore, of_view, of_page)


@pytest.fixture
def small_stills(monkeypatch):
    """The still pictures of attention views are small: what names do to drawings has a test of its own."""
    monkeypatch.setattr("headtools.course.attention_view.map_grid", lambda *args, **options: line())
    monkeypatch.setattr("headtools.course.attention_view.LIMIT", 10**6)


@pytest.mark.parametrize("writer", WRITERS)
def test_pages_show_text_as_text(writer, small_stills):
    expected = Skeleton(writer("harmless")).parts
    for name, text in HOSTILE.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = writer(text)
        plt.close("all")
        made.encode("utf-8")  # can be written
        found = Skeleton(made)
        assert found.parts == expected, name
        shown = "".join(found.text) + "".join(found.attributes)
        assert plain(text).strip() in shown, name
        assert "\x00" not in made


def test_names_in_drawings():
    """All at once: each drawing costs as much as its names together."""
    texts = list(HOSTILE.values())
    maps = np.full((2, len(texts), len(texts)), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fig in (
            ht.plot.maps(maps, texts, titles=texts[:2]),
            plot.words([(text, ["a", text]) for text in texts]),
            ht.plot.bars(texts, range(len(texts)), label="n"),
        ):
            assert ht.figure(fig, claim="It is drawn.", alt="Something hostile.").png[:4] == b"\x89PNG"


def test_what_a_notebook_stores_can_be_written(small_stills):
    for text in HOSTILE.values():
        shown = [
            others(text),
            CheckResult("n", text, "not yet", text),
            ht.figure(line(), claim=f"c {text}", alt="There is a line."),
            ht.attention_view([torch.eye(2).expand(1, 2, 2)], ["a", text], alt=f"a {text}"),
        ]
        for one in shown:
            json.dumps(one._repr_mimebundle_(), ensure_ascii=False).encode("utf-8")


def test_a_report_on_hostile_sentences():
    """Tokenizers take no lone surrogates and split at spaces; all else can be a word."""
    bad = [text.replace(" ", "_") for name, text in HOSTILE.items() if name not in ("surrogate", "spaces")]
    bad = ["".join(text.split()) for text in bad]
    rows = [
        ht.Sentence(
            (bad[i % len(bad)], "sees", bad[(i + 1) % len(bad)]),
            (2, 0, 2),
            ("nsubj", "root", "obj"),
            ("NOUN", "VERB", "NOUN"),
            (0, 0, 0),
        )
        for i in range(2 * len(bad))
    ]
    known = {token: i for i, token in enumerate(("<pad>", "<unk>", "<mask>", "sees", *dict.fromkeys(bad)))}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = tf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", mask_token="<mask>"
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = tf.BertForMaskedLM(tf.BertConfig(vocab_size=len(known), pad_token_id=0, **shape)).eval()
    found = ht.report(model, rows, tokenizer, orders=1, title=bad[0], progress=False)
    parts = Skeleton(found.html).parts
    assert not {part[0] for part in parts} & {"iframe", "img"}
    assert not {name for part in parts for name in part[1:] if name.startswith("on")}
    data = assert_runs_one_script(found.html)
    assert data["title"] == plain(bad[0])
    shown = {token for text in data["texts"] for token in text["input_ids"]}
    assert len(shown & set(map(plain, bad))) > len(bad) / 2, "the others are masked"
    assert not found.missing
    assert found.tables["pruning"].kept.tolist() == [2, 1, 0] * 2, "two heads: each number of them once an order"
