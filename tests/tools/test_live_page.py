"""The live page: what it is made of, and its arithmetic in node against torch's."""

import base64
import copy
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import live_measures
import live_stills
import live_words
import make_live_page
import numpy as np
import pytest
import torch

import headtools as ht
from headtools.organism.batches import batches
from headtools.organism.evaluate import token_accuracy
from headtools.organism.gloss import gloss
from recipes import orders

NODE = shutil.which("node")


@pytest.fixture(scope="module")
def model():
    return live_measures.rounded(ht.load()[0])


@pytest.fixture(scope="module")
def page(tmp_path_factory, root) -> Path:
    kept = (root / "site" / "live" / "measured.json").read_text("utf-8")
    out = make_live_page.build(tmp_path_factory.mktemp("live") / "page").parent
    assert (root / "site" / "live" / "measured.json").read_text("utf-8") == kept, (
        "site/live/measured.json was of other weights and has been measured anew: commit it"
    )
    return out


def test_the_page_is_whole_and_asks_no_network(page):
    assert sorted(path.name for path in page.iterdir()) == [
        "course.js",
        "index.html",
        "live.js",
        "style.css",
        "weights.js",
    ]
    html = (page / "index.html").read_text("utf-8")
    for name in re.findall(r'(?:src|href)="([^"#]+)"', html):
        assert name.startswith(("data:", "../")) or (page / name).is_file(), name
    text = html + (page / "live.js").read_text("utf-8") + (page / "style.css").read_text("utf-8")
    assert not {url for url in re.findall(r"https?://[\w.]+", text) if "w3.org" not in url}
    assert sum(path.stat().st_size for path in page.iterdir()) < 8_500_000


def test_it_can_be_read_without_a_script(page):
    html = (page / "index.html").read_text("utf-8")
    assert html.count("data:image/png;base64") == 3  # the maps of the three kinds
    assert "<polyline" in html
    assert html.count('class="said"') > 20
    assert html.count("class=wrong") >= 3


def test_nothing_is_said_of_one_model_alone(root):
    """Names of heads and words of the language come from the data, so that another model can take its place."""
    words = {word for entry in ht.corpus("organism", "test", 50) for word in entry.words if len(word) > 5}
    for path in (root / "site" / "live").glob("*.js"):
        text = re.sub(r"/\*.*?\*/|//.*", "", path.read_text("utf-8"), flags=re.S)
        assert not re.search(r"\b(encoder|decoder|cross) \d\.\d", text), path.name
        assert not re.search(r"\b(144|5613)\b", text), path.name
        assert not words & set(re.findall(r"\w+", text)), path.name


def test_a_module_that_the_bundle_would_break_is_refused(tmp_path):
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const main = () => b;\n')
    (tmp_path / "b.js").write_text("export const b = 1;\n")
    assert make_live_page.bundle(tmp_path, "a.js").count('"./b.js": function') == 1
    (tmp_path / "b.js").write_text("export default 1;\n")
    with pytest.raises(ValueError, match="export default"):
        make_live_page.bundle(tmp_path, "a.js")


def test_a_model_that_the_page_cannot_run_is_refused(model):
    class Other:
        config = type("Config", (), {**model.config.to_dict(), "activation_function": "gelu", "model_type": "marian"})

    with pytest.raises(ValueError, match="gelu"):
        make_live_page.config(Other())


@pytest.mark.parametrize("name", ["nsubj down", "det up", "offset -1", "even", "vocative up"])
def test_every_role_has_words(name):
    words = live_words.role(name)
    assert words["text"][0].isupper()
    assert words["label"]


def test_a_word_says_what_the_library_says():
    language = live_words.language()
    for line in language["words"].split("\n"):
        word, _, side, *numbers = line.split(" ")
        said = [language["labels"].get(language["features"][int(number)]) for number in numbers]
        if side == "target":
            expected = gloss(word).lines[0][2].replace("gender ", "gender\u00a0").split(", ")
            assert sorted(filter(None, said)) == sorted(filter(None, expected)), word


def test_every_phenomenon_has_a_word_that_tells_it():
    for sentence in ht.corpus("organism", "test", 100):
        for at, phenomena in zip(sentence.alignment, sentence.phenomena, strict=True):
            for name in phenomena:
                told = live_words.sources(sentence, at, name)
                assert name in live_words.RULES
                assert name in live_words.READERS
                assert all(1 <= number <= len(sentence.words) for number in told)
                assert told or (name == "topic" and sentence.topic is None), (str(sentence), at, name)


def test_the_first_sentence_and_head_are_telling(root, model):
    stored = json.loads((root / "site" / "live" / "measured.json").read_text("utf-8"))
    first = stored["first"]
    assert sorted(stored["telling"]) == list(range(stored["sentences"]))
    assert first["sentence"] == stored["telling"][0]
    sentence = ht.corpus("organism", "test", stored["sentences"])[first["sentence"]]
    with ht.ablate(model, [live_measures.heads(model)[first["head"]]]):
        said = ht.translate(model, ht.load()[1], [sentence.words])[0].split()
    assert sum(word != right for word, right in zip(said, sentence.target, strict=True)) >= 6


def test_png_is_read_by_others():
    from io import BytesIO

    from PIL import Image

    opacity = np.array([[0.0, 1.0, 0.5]])
    alpha = np.asarray(Image.open(BytesIO(live_stills.png(opacity))))[..., 1]
    assert alpha.tolist() == [[0, 255, 136]]


def test_the_tour_names_heads_that_hold_the_role(root, model):
    stored = json.loads((root / "site" / "live" / "measured.json").read_text("utf-8"))
    for step in stored["tour"].values():
        assert 0 <= step["sentence"] < stored["sentences"]
        for head in step.get("heads", []):
            assert step["role"] in stored["roles"][head]
    assert len(stored["roles"]) == len(live_measures.heads(model))
    for scope, rankings in stored["rankings"].items():
        for order in rankings.values():
            assert len(set(order)) == len(order) == len(stored["rankings"][scope]["random"])


def test_learned_gates_are_those_of_the_sweep(root, model):
    stored = json.loads((root / "site" / "live" / "measured.json").read_text("utf-8"))["rankings"]
    heads = live_measures.heads(model)
    for scope in live_measures.SCOPES:
        order = [heads[number] for number in stored[scope]["learned gates"]]
        assert order == orders.ranking("learned", model, [], scope), "measured.json is of another sweep: delete it"


def flat(tensor) -> str:
    return base64.b64encode(tensor.detach().float().contiguous().numpy().tobytes()).decode()


@torch.no_grad()
def reference(model, tokenizer) -> dict:
    """What torch says of the model with the page's weights; numbers in double precision, to which 1e-4 leaves room.

    Single precision itself is 2e-4 off where many heads are off and logits are large.
    """
    heads, sentences = live_measures.heads(model), ht.corpus("organism", "test", 12)
    gone = [[], heads[40:42], heads[::7], [*heads[96:140:3], *heads[50:60]]]
    off = [[heads.index(head) for head in some] for some in gone]
    logits, translations, accuracy = [], [], []
    exact = copy.deepcopy(model).double()
    for some, numbers in zip(gone, off, strict=True):
        with ht.ablate(exact, some):
            for i in (0, 5):
                found = exact(**batches([sentences[i]])[0]).logits[0]
                logits.append({"sentence": i, "off": numbers, "logits": flat(found)})
        with ht.ablate(model, some):
            said = ht.translate(model, tokenizer, [sentence.words for sentence in sentences])
            translations.append({"off": numbers, "said": said})
            accuracy.append({"off": numbers, "sentences": 12, "share": token_accuracy(model, sentences).mean().item()})
    batch = batches([sentences[3]])[0]
    with ht.ablate(exact, gone[2]), ht.record(exact, want="maps") as seen:
        exact(**batch)
    maps = [flat(seen[head[:2]].maps[0, head[2]]) for head in heads]
    with ht.record(exact, want=("q", "k", "v", "z")) as seen:
        exact(**batch)
    inside = []
    for kind, layer, head in (("encoder", 2, 5), ("decoder", 0, 1), ("cross", 5, 7)):
        found, site = seen[kind, layer], ht.sites(exact)[kind, layer]
        z, columns = found.z[0, :, head], slice(head * site.head_dim, (head + 1) * site.head_dim)
        inside.append(
            {
                "head": heads.index((kind, layer, head)),
                "z": flat(z),
                "output": flat(z @ site.out.weight[:, columns].T),
                **{name: flat(getattr(found, name)[0, head]) for name in "qkv"},
            }
        )
    return {
        "logits": logits,
        "translations": translations,
        "accuracy": accuracy,
        "maps": {"sentence": 3, "off": off[2], "maps": maps},
        "inside": {"sentence": 3, "heads": inside},
    }


@pytest.mark.full  # all translations and maps once more, in node
def test_node_agrees_with_torch(page, model, root):
    if NODE is None:
        pytest.skip("no node on the PATH")
    expected = reference(model, ht.load()[1])
    (page.parent / "reference").mkdir()
    for name in ("weights.js", "course.js"):
        shutil.copy(page / name, page.parent / "reference" / name)
    (page.parent / "reference" / "reference.json").write_text(json.dumps(expected), encoding="utf-8")
    run = subprocess.run(
        [NODE, "--test", "site/live/test/"],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"LIVE_REFERENCE": str(page.parent / "reference")},
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert re.search(r"# skipped 0", run.stdout)
