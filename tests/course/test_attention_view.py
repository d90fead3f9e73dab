"""bertviz in a frame: the right weights, harmless tokens, nothing from outside, and limits that say what to do."""

import base64
import html
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from headtools.course.attention_view import attention_view
from headtools.course.frame import View, view_script

from ..hostile import HOSTILE

TOKENS = ["the", "quick", "brown", "fox"]


def maps(layers=3, heads=2, queries=4, keys=4):
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(1, heads, queries, keys, generator=draw).mul(4).softmax(-1) for _ in range(layers)]


def packed(view):
    """The weights in a view's script, as (layer, head, query, key)."""
    data, shape = re.search(r'weights\("([^"]+)",\[([\d, ]+)\]\)', view.script).groups()
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape([int(n) for n in shape.split(",")]) / 100


@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_weights_of_the_chosen_layers_and_heads(kind):
    given = maps(layers=4, heads=3)
    view = attention_view(given, TOKENS, kind=kind, alt="Lines.", layers=[1, 3], heads=[2, 0])
    assert np.abs(packed(view) - np.stack([given[1][0, [2, 0]], given[3][0, [2, 0]]])).max() <= 0.00501
    assert '"include_layers":[1,3],"include_heads":[2,0]' in view.script
    assert repr(view) == f"Attention, {kind} view: 2 layers, 2 heads, 4 query tokens, 4 key tokens. Lines."


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
    assert "max-width:990px;border:0" in attention_view(maps(), TOKENS, kind="model", alt="Lines.").html


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
    for kind in ("head", "model"):
        assert len(attention_view(given, tokens, kind=kind, alt="Lines.").html) < 100_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alt": ""}, "needs alt="),
        ({"kind": "neuron"}, "'head' or 'model'"),
        ({"layers": [3]}, "layers must be different numbers from 0 to 2"),
        ({"layers": [0, 0]}, "layers must be different"),
        ({"heads": []}, "heads must be different numbers from 0 to 1"),
        ({"heads": [-1]}, "heads must be different"),
        ({"tokens": ["a"]}, r"\(4, 4\) but there are 1 query tokens.*special tokens included"),
        ({"maps": []}, "layers must be different"),
        ({"maps": maps()[0][0]}, r"layer 0 is \(4, 4\).*write \[maps\]"),
        ({"maps": [torch.rand(2, 2, 4, 4)]}, r"take maps\[:1\]"),
        ({"maps": [torch.full((2, 4, 4), float("nan"))]}, "between 0 and 1, got nan"),
        ({"maps": [torch.full((2, 4, 4), -1.0)]}, "between 0 and 1, got -1"),
        ({"maps": maps(queries=65, keys=65), "tokens": ["a"] * 65}, "65 tokens are too many for the head view.*64"),
        ({"maps": maps(queries=21, keys=21), "tokens": ["a"] * 21, "kind": "model"}, "takes 20.*kind='head'"),
        ({"maps": maps(6, 8, 60, 60), "tokens": ["a"] * 60}, r"layers=range\(3\).*limit=\d+"),
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
        view_script(View("head", np.ones((1, 1, 1, 1)), ["a"], ["a"], [0], [0], "A line."))


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_drawing_has_a_line_for_every_weight(kind, tmp_path):
    given = maps()
    path = attention_view(given, TOKENS, kind=kind, alt="Drawn at random.").svg(tmp_path / "view.svg")
    root = ElementTree.parse(path).getroot()
    found = [re.search(r"stroke-opacity: ([\d.]+)", line.get("style", "")) for line in root.iter(f"{SVG}path")]
    expected = torch.stack(given).flatten().numpy().round(2)
    drawn = [float(opacity[1]) for opacity in found if opacity]
    assert sorted(drawn) == pytest.approx(sorted(expected[(expected >= 0.01) & (expected < 1)].tolist()))
    assert (root[0].text, root[1].text) == (
        f"Attention, {kind} view: 3 layers, 2 heads, 4 query tokens, 4 key tokens",
        "Drawn at random.",
    )
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert ("fox" in words) is (kind == "head")
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_drawing_is_xml_whatever_tokens_hold(name, monkeypatch, tmp_path):
    still = "headtools.course.attention_view.map_grid"  # another picture, that of a page without its frame
    monkeypatch.setattr(still, lambda *args, **options: plt.figure(figsize=(1, 1)))
    monkeypatch.setattr("warnings.warn", lambda *args, **options: None)  # of characters that a font lacks
    tokens = ["a", HOSTILE[name] + "\ufffe", "b", "c"]
    path = attention_view(maps(layers=1), tokens, alt=f"a {HOSTILE[name]}", limit=10**6).svg(tmp_path / "view.svg")
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.parse(path).getroot().iter()}
    assert not tags & {"script", "img", "b", "iframe"}
