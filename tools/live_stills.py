"""What the live page shows before and without its script: a sentence, its translation, all maps, the curves."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import torch
from torch import nn

import headtools as ht
from headtools.organism.batches import batches
from headtools.organism.lexicon import TOPIC_OF_NAME
from headtools.organism.vocabulary import vocabulary

KINDS = {"encoder": "Encoder", "cross": "Cross-attention", "decoder": "Decoder"}  # in the order of the page
MANY = 24  # heads that one press switches off at random
CELL = 24  # pixels of a map, margin included
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 720, 250, 46, 14, 12, 30  # of the chart; chart.js draws it with the same numbers


def stills(model: nn.Module, tokenizer: object, data: dict[str, Any]) -> dict[str, str]:
    """Return pieces of HTML by the names that ``index.html`` gives them; ``data``: what ``course.js`` holds."""
    number = data["first"]["sentence"]
    first = data["sentences"][number]
    words = first["source"].split()
    translated = ht.translate(model, tokenizer, [words])[0].split()
    total = len(data["rolesOfHeads"])
    right = "All right" if translated == first["target"].split() else "Not all right"
    return {
        "total": str(total),
        "sentences": str(len(data["sentences"])),
        "parameters": f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million",
        "accuracy": f"{100 * data['accuracy']:.1f}",
        "readable": str(sum(of[0] == "source" and "accented" not in of for of in vocabulary().values() if of)),
        "names": str(len(TOPIC_OF_NAME)),
        "example": next(iter(TOPIC_OF_NAME)),
        "source": " ".join(f"<span>{escape(word)}</span>" for word in words),
        "verdict": f"<b>{right}</b> with all {total} heads on",
        "words": "".join(_word(words[at - 1], word) for at, word in zip(first["from"], translated, strict=False)),
        "reading": "Small: the source word. Large: what the model writes for it.",
        "grids": grids(model, number),
        "presets": presets(data),
        "curve": curve(data["curves"]["encoder"]),
        "broken": broken(model, tokenizer, data),
    }


def presets(data: dict[str, Any]) -> str:
    """Return buttons for what one press switches off: heads of the tour that have a role, and some at random."""
    named = {name: step for name, step in data["tour"].items() if "heads" in step and name != "referent"}
    labels = {name: escape(data["roles"][step["role"]]["label"]) for name, step in named.items()}
    buttons = [
        f'<button type="button" data-do="without" data-step="{name}">{label}</button>' for name, label in labels.items()
    ]
    return "".join([*buttons, f'<button type="button" data-do="random" data-many="{MANY}">{MANY} at random</button>'])


def _word(source: str, translated: str, right: str | None = None) -> str:
    wrong = f'<span class="right">{escape(right)}</span>' if right else ""
    return (
        f'<li{" class=wrong" if right else ""}><span class="from">{escape(source)}</span>'
        f'<span class="said">{escape(translated)}</span>{wrong}</li>'
    )


@torch.no_grad()
def maps(model: nn.Module, number: int) -> dict[str, list[torch.Tensor]]:
    """Return the attention maps of all heads in one sentence: a list of layers for each kind."""
    sentence = ht.corpus("organism", "test", number + 1)[number]
    with ht.record(model, want="maps") as seen:
        model(**batches([sentence])[0])
    return {kind: [seen[site.key].maps[0] for site in ht.sites(model)[kind]] for kind in KINDS}


def grids(model: nn.Module, number: int) -> str:
    """Return the maps of all heads in one sentence, a picture for each kind: first layer on top."""
    parts = []
    for kind, layers in maps(model, number).items():
        picture = np.vstack([np.hstack([_tile(head.numpy()) for head in heads]) for heads in layers])
        image = base64.b64encode(png(picture)).decode()
        alt = f"Attention maps of {len(layers)} layers of {len(layers[0])} heads"
        parts.append(
            f'<div class="grid {kind}"><h3>{KINDS[kind]}</h3>'
            f'<div class="still" role="img" aria-label="{alt}" '
            f'style="aspect-ratio:{picture.shape[1]}/{picture.shape[0]};--maps:url(data:image/png;base64,{image})"></div></div>'
        )
    return "".join(parts)


def _tile(weights: np.ndarray) -> np.ndarray:
    """Return a map as CELL x CELL opacities, with an empty margin."""
    inside = CELL - 2
    rows = np.arange(inside) * weights.shape[0] // inside
    columns = np.arange(inside) * weights.shape[1] // inside
    tile = np.zeros((CELL, CELL))
    tile[1:-1, 1:-1] = 0.08 + 0.92 * np.sqrt(weights)[rows][:, columns]
    return tile


def png(opacity: np.ndarray) -> bytes:
    """Return a grey-and-alpha PNG that is black where ``opacity`` (rows, columns; 0 to 1) is 1.

    >>> png(np.ones((1, 1)))[:4]
    b'\\x89PNG'
    """
    pixels = np.zeros((*opacity.shape, 2), "uint8")
    pixels[..., 1] = np.round(opacity.clip(0, 1) * 15) * 17  # sixteen steps are enough, and smaller
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">2I5B", opacity.shape[1], opacity.shape[0], 8, 4, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


def curve(curves: dict[str, Sequence[Sequence[float]]]) -> str:
    """Return the pruning curves of the encoder as an SVG, as the page's script draws them."""
    most = max(kept for points in curves.values() for kept, _ in points)

    def place(kept: float, share: float) -> str:
        x = LEFT + (WIDE - LEFT - RIGHT) * kept / most
        return f"{x:.1f},{TOP + (HIGH - TOP - BOTTOM) * (1 - share):.1f}"

    lines = "".join(
        f'<polyline class="rank-{i}" points="{" ".join(place(*point) for point in points)}"/>'
        for i, points in enumerate(curves.values())
    )
    steps = [i / 4 for i in range(5)]
    rules = "".join(
        f'<line class="rule" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text x="{LEFT - 8}" y="{float(y) + 4}" text-anchor="end">{share:.0%}</text>'
        for share in steps
        for y in [place(0, share).split(",")[1]]
    )
    rules += "".join(
        f'<text x="{place(most * part, 0).split(",")[0]}" y="{HIGH - 9}" text-anchor="middle">{most * part:.0f}</text>'
        for part in steps
    )
    names = ", ".join(f'<tspan class="rank-{i}">{escape(name)}</tspan>' for i, name in enumerate(curves))
    key = f'<text class="key" x="{WIDE - RIGHT}" y="{HIGH - BOTTOM - 14}" text-anchor="end">{names}</text>'
    summary = "; ".join(
        f"{name}: {points[len(points) // 2][1]:.0%} with half of the heads" for name, points in curves.items()
    )
    label = f"Share of words right by number of encoder heads kept. {summary}."
    about = f'viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="curves still-curves" {about}>{rules}{lines}{key}</svg>'


def broken(model: nn.Module, tokenizer: object, data: dict[str, Any]) -> str:
    """Return the tour's sentences translated without the heads of the step: what a reader without a script can see."""
    number = [
        (*site.key, head)
        for kind in ("encoder", "decoder", "cross")
        for site in ht.sites(model)[kind]
        for head in range(site.heads)
    ]
    parts = []
    for step in data["tour"].values():
        if "heads" not in step:
            continue
        entry, off = data["sentences"][step["sentence"]], [number[i] for i in step["heads"]]
        words, target = entry["source"].split(), entry["target"].split()
        with ht.ablate(model, off):
            translated = ht.translate(model, tokenizer, [words])[0].split()
        if translated == target:
            continue
        translated += [""] * (len(target) - len(translated))
        shown = "".join(
            _word(words[at - 1], word, right if word != right else None)
            for at, word, right in zip(entry["from"], translated, target, strict=False)
        )
        named = ", ".join(f"{kind} {layer}.{head}" for kind, layer, head in off)
        role = data["roles"][step["role"]]["text"]
        parts.append(
            f'<h3>Without {named}</h3><p>{role}. “{escape(entry["source"])}” becomes</p><ol class="words">{shown}</ol>'
        )
    return "".join(parts)
