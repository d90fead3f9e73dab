"""bertviz in a frame: the right weights, harmless tokens, nothing from outside, and limits that say what to do."""

import base64
import html
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headtools.course.attention_view import attention_view
from headtools.course.frame import View, view_script

TOKENS = ["the", "quick", "brown", "fox"]


def maps(layers=3, heads=2, queries=4, keys=4):
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(1, heads, queries, keys, generator=draw).mul(4).softmax(-1) for _ in range(layers)]


def packed(view):
    """The weights in a view's script, as (layer, head, query, key)."""
    data, shape = re.search(r'weights\("([^"]+)",\[([\d, ]+)\]\)', view.script).groups()
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape([int(n) for n in shape.split(",")]) / 100


def test_the_weights_of_the_chosen_layers():
    given = maps(layers=4, heads=3)
    view = attention_view(given, TOKENS, alt="Lines.", layers=[1, 3])
    assert np.abs(packed(view) - np.stack([given[1][0], given[3][0]])).max() <= 0.00501
    assert '"include_layers":[1,3],"include_heads":[0,1,2]' in view.script
    assert repr(view) == "Attention, head view: 2 layers, 3 heads, 4 query tokens, 4 key tokens. Lines."


def test_cross_attention_and_records():
    cross = maps(queries=2)
    view = attention_view([SimpleNamespace(maps=m[0]) for m in cross], "ab", key_tokens=TOKENS, alt="Lines.")
    assert packed(view).shape == (3, 2, 2, 4)
    assert '"left_text":["a","b"],"right_text":["the","quick","brown","fox"]' in view.script
    with pytest.raises(ValueError, match=r"2 query tokens and 2 key tokens.*key_tokens= for cross-attention"):
        attention_view(cross, "ab", alt="Lines.")


def test_the_frame_is_as_wide_as_its_drawing():
    html = attention_view(maps(), TOKENS, alt="Lines.").html
    assert "max-width:480px;border:0" in html


def test_hostile_tokens_stay_text():
    nasty = [
        "</script><script>window.PWN=1</script>",
        "<img src=x onerror=1>",
        "PYTHON_PARAMS",
        ']}</style>\u2028&quot;"',
    ]
    view = attention_view(maps(), nasty, alt='"><script>1</script>')
    assert "<script" not in view.script.lower()
    assert "</" not in re.sub(r"^.*const params = .*$", "", view.script, flags=re.M)
    outside = re.sub(r'srcdoc="[^"]*"', "", view.html)
    assert "<script" not in outside
    assert outside.count("<img") == 1
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', view.html)[1])
    assert len(re.findall("<script>", page)) == len(re.findall("</script>", page)) == 1


def test_nothing_comes_from_outside():
    view = attention_view(maps(), TOKENS, alt="Lines.")
    assert 'sandbox="allow-scripts"' in view.html
    assert "allow-same-origin" not in view.html
    addresses = set(re.findall(r"https?://[\w./-]+", view.html))
    assert addresses <= {
        "http://www.w3.org/2000/svg",
        "https://github.com/tensorflow/tensor2tensor/blob/master/tensor2tensor/visualization/attention.js",
    }  # a name space and a comment
    assert "default-src &#x27;none&#x27;" in view.html


def test_the_same_view_twice_is_the_same_text():
    assert attention_view(maps(), TOKENS, alt="Lines.").html == attention_view(maps(), TOKENS, alt="Lines.").html
    noisy = [m + 1e-7 for m in maps()]
    assert attention_view(maps(), TOKENS, alt="L.").html == attention_view(noisy, TOKENS, alt="L.").html


def test_the_still_picture_and_the_claim():
    view = attention_view(maps(), TOKENS, alt="Lines <here>.", claim="Head 0 looks back.")
    assert '<img class="headtools-still" alt="Lines &lt;here&gt;."' in view.html
    assert "Head 0 looks back.</figcaption>" in view.html
    assert repr(view).endswith("4 key tokens. Head 0 looks back.")


@pytest.mark.full
def test_size_of_the_organisms_views():
    tokens = [f"word{i}" for i in range(20)]
    given = maps(layers=6, heads=8, queries=20, keys=20)
    assert len(attention_view(given, tokens, alt="Lines.").html) < 100_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alt": ""}, "needs alt="),
        ({"layers": [3]}, "layers must be different numbers from 0 to 2"),
        ({"layers": [0, 0]}, "layers must be different"),
        ({"tokens": ["a"]}, r"\(4, 4\) but there are 1 query tokens.*special tokens included"),
        ({"maps": []}, "layers must be different"),
        ({"maps": maps()[0][0]}, r"layer 0 is \(4, 4\).*write \[maps\]"),
        ({"maps": [torch.rand(2, 2, 4, 4)]}, r"take maps\[:1\]"),
        ({"maps": [torch.full((2, 4, 4), float("nan"))]}, "between 0 and 1, got nan"),
        ({"maps": [torch.full((2, 4, 4), -1.0)]}, "between 0 and 1, got -1"),
        ({"maps": maps(queries=65, keys=65), "tokens": ["a"] * 65}, "65 tokens are too many.*64"),
        ({"maps": maps(6, 8, 60, 60), "tokens": ["a"] * 60}, r"layers=range\(3\)"),
    ],
)
def test_refusals_say_what_to_do(change, says):
    given = {"maps": maps(), "tokens": TOKENS, "alt": "Lines."} | change
    with pytest.raises(ValueError, match=f"(?s){says}"):
        attention_view(given.pop("maps"), given.pop("tokens"), **given)


def test_another_bertviz_is_refused(monkeypatch, tmp_path):
    (tmp_path / "head_view.js").write_text("const settings = PYTHON_PARAMS;")
    monkeypatch.setattr("headtools.course.frame.files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"made for bertviz 1\.4\.1"):
        view_script(View(np.ones((1, 1, 1, 1)), ["a"], ["a"], [0], "A line."))
