"""Make the live page: the shipped model in plain JavaScript, with its data, in a folder that opens from disk.

    python tools/make_live_page.py                 build/live/index.html
    python tools/make_live_page.py --out FOLDER

The page has one script, bundled from the modules in ``site/live``, and two files of data: ``course.js`` (words,
sentences, roles, rankings, tour) and ``weights.js`` (half precision). ``make site`` makes it too, as its first picture.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import live_measures  # noqa: E402
import live_stills  # noqa: E402
import live_words  # noqa: E402

import headtools as ht  # noqa: E402
from headtools.roles.sentence import Sentence  # noqa: E402

SOURCE = ROOT / "site" / "live"
ENTRY = "app.js"
FOLDER = "(globalThis.headtoolsLive ??= {})"  # where the scripts of data put what they bring


# ---- the script ------------------------------------------------------------------------------------------------------


def bundle(source: Path = SOURCE, entry: str = ENTRY) -> str:
    """Return one classic script of an ES module and all that it imports: browsers load no modules from disk.

    Handles what the page's modules use: ``import { a, b } from "./c.js"``, ``export function``, ``export const``.
    """
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        text = (source / name).read_text("utf-8")
        texts[name] = ""  # seen, so that a circle of imports ends
        for needed in re.findall(r'^import .*? from "\./(.+?)";$', text, re.M | re.S):
            add(needed)
        exported = re.findall(r"^export (?:function|const) ([\w$]+)", text, re.M)
        text = re.sub(r'^import (\{.*?\}) from ("\./.+?");$', r"const \1 = use(\2);", text, flags=re.M | re.S)
        text = re.sub(r"^export (?=function|const)", "", text, flags=re.M)
        if left := re.findall(r"^(?:import|export) .*", text, re.M):
            raise ValueError(f"{name}: {left[0]!r} is a form of import or export that the bundle does not know")
        texts[name] = f'"./{name}": function (use) {{\n{text}\nreturn {{ {", ".join(exported)} }};\n}},'

    add(entry)
    return "\n".join(
        [
            "(() => {",
            '"use strict";',
            "const modules = {",
            *texts.values(),
            "};",
            "const made = {};",
            "const use = (name) => (made[name] ??= modules[name](use));",
            "/* The text of a script that calls a function of a module: for workers, which get no file from disk. */",
            "function source(name, call) {",
            "  const needed = new Set();",
            "  const add = (one) => {",
            "    if (needed.has(one)) return;",
            "    needed.add(one);",
            '    for (const [, other] of String(modules[one]).matchAll(/ use\\("(.+?)"\\)/g)) add(other);',
            "  };",
            "  add(name);",
            "  const listed = [...needed].map((one) => JSON.stringify(one) + `: ${modules[one]}`);",
            '  return `"use strict"; const modules = {${listed}}, made = {};'
            " const use = (one) => (made[one] ??= modules[one](use));"
            " use(${JSON.stringify(name)}).${call}();`;",
            "}",
            f"{FOLDER}.source = source;",
            f'use("./{entry}").main();',
            "})();",
            "",
        ]
    )


# ---- the data --------------------------------------------------------------------------------------------------------


def config(model: nn.Module) -> dict[str, Any]:
    """Return the sizes of a model, as the page needs them. Raises ``ValueError`` for one that the page cannot run."""
    c = model.config
    known = c.model_type == "marian" and c.activation_function == "relu" and c.tie_word_embeddings
    if not known or c.encoder_attention_heads != c.decoder_attention_heads or c.encoder_ffn_dim != c.decoder_ffn_dim:
        raise ValueError(f"got a {c.model_type} with {c.activation_function}; the page runs Marian models with relu")
    return {
        "encoderLayers": c.encoder_layers,
        "decoderLayers": c.decoder_layers,
        "heads": c.encoder_attention_heads,
        "width": c.d_model,
        "inner": c.encoder_ffn_dim,
        "vocabulary": c.vocab_size,
        "start": c.decoder_start_token_id,
        "end": c.eos_token_id,
        "longest": model.generation_config.max_new_tokens,
        "scaleEmbedding": c.scale_embedding,
    }


def weights(model: nn.Module) -> dict[str, Any]:
    """Return a model's configuration and its weights in half precision: names with sizes, and Base64."""
    tensors = dict(model.named_parameters()) | {"final_logits_bias": model.final_logits_bias}
    tensors = {name: tensor for name, tensor in tensors.items() if "embed_positions" not in name}
    halves = [tensor.detach().flatten().half().numpy().astype("<f2").tobytes() for tensor in tensors.values()]
    return {
        "config": config(model),
        "tensors": [[name, tensor.numel()] for name, tensor in tensors.items()],
        "half": base64.b64encode(b"".join(halves)).decode(),
    }


def group(sentence: Sentence) -> str:
    """Return the heading under which the page lists a sentence: by the rarest construction in it."""
    if any(sentence.coreference):
        return "With a pronoun"
    if any(relation.startswith("acl") for relation in sentence.relations):
        return "With a relative clause"
    if any(relation in ("conj", "advcl") for relation in sentence.relations):
        return "Two clauses"
    return "One clause"


def course(model: nn.Module, measured: dict[str, Any]) -> dict[str, Any]:
    """Return all data besides the weights; ``told``: what :func:`live_measures.read` returns."""
    sentences = ht.corpus("organism", "test", measured["sentences"])
    names = list(dict.fromkeys(name for s in sentences for of_word in s.phenomena for name in of_word))
    return {
        "language": live_words.language(),
        "phenomena": {name: live_words.RULES[name] for name in names},
        "sentences": [
            {
                "source": " ".join(s.words),
                "target": " ".join(s.target),
                "from": list(s.alignment),
                "group": group(s),
                "needs": [[names.index(name) for name in of_word] for of_word in s.phenomena],
                "told": [
                    [live_words.sources(s, at, name) for name in of_word]
                    for at, of_word in zip(s.alignment, s.phenomena, strict=True)
                ],
            }
            for s in sentences
        ],
        "readers": live_words.READERS,
        "roles": {name: live_words.role(name) for of_head in measured["roles"] for name in of_head},
        "rolesOfHeads": measured["roles"],
        "accuracy": measured["accuracy"],
        "rankings": measured["rankings"],
        "curves": measured["curves"],
        "tour": measured["tour"],
        "telling": measured["telling"],
        "first": measured["first"],
        "alike": alike(measured["roles"], config(model)),
    }


def alike(roles: list[list[str]], sizes: dict[str, Any]) -> str | None:
    """Return why the maps of all cross-attention heads look alike, or None where they do not share one role."""
    cross = roles[-sizes["heads"] * sizes["decoderLayers"] :]
    if not cross[0] or any(names != cross[0] for names in cross):
        return None
    return (
        f"All {len(cross)} look alike because training aligned them: guided alignment, a second loss, drew every head "
        "of cross-attention to the source word to be translated next."
    )


def script(name: str, data: object) -> str:
    """Return a script that brings data: ``headtoolsLive.name = ...``."""
    return f"{FOLDER}.{name} = {json.dumps(data, ensure_ascii=False, separators=(',', ':'))};\n"


# ---- the page --------------------------------------------------------------------------------------------------------


class Live(NamedTuple):
    """The page that was made, and what it was made from."""

    path: Path
    model: nn.Module
    data: dict[str, Any]
    stills: dict[str, str]


def build(out: Path, home: str = "../index.html") -> Path:
    """Make the page in a folder, anew; ``home`` is the address of the course. Returns the path of the page."""
    return make(out, home).path


def make(out: Path, home: str = "../index.html") -> Live:
    """Make the page as :func:`build` does; the site's first page shows the same stills."""
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    live_measures.rounded(model)
    measured = live_measures.read(SOURCE / "measured.json")
    data = course(model, measured)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "weights.js").write_text(script("weights", weights(model)), encoding="utf-8")
    (out / "course.js").write_text(script("course", data), encoding="utf-8")
    (out / "live.js").write_text(bundle(), encoding="utf-8")
    (out / "style.css").write_text(style(SOURCE / "style.css"), encoding="utf-8")
    page = (SOURCE / "index.html").read_text("utf-8")
    stills = live_stills.stills(model, tokenizer, data)
    for name, text in (stills | {"home": home}).items():
        page = page.replace(f"{{{{{name}}}}}", text)
    if left := re.findall(r"\{\{\w+\}\}", page):
        raise ValueError(f"index.html asks for {left[0]}, which no still is named after")
    (out / "index.html").write_text(page, encoding="utf-8")
    return Live(out / "index.html", model, data, stills)


def style(own: Path) -> str:
    """Return a page's style sheet: what all pages share, what this page and the first page share, its own."""
    shared = [SOURCE.parent / "identity.css", SOURCE.parent / "parts.css"]
    return "\n".join(path.read_text("utf-8") for path in (*shared, own))


def main() -> int:
    """Make the page and print where it is."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=ROOT / "build" / "live")
    print(build(options.parse_args().out.resolve(), home="https://github.com/headtools/headtools"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
