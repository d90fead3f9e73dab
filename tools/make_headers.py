"""Draw the picture above each lesson from the data that ship: ``make picture``, or alone

    python tools/make_headers.py [--out FOLDER]

One SVG for each lesson, with a dark ground of its own, so that it looks the same on light and dark pages.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import headtools as ht  # noqa: E402
from headtools import geometry  # noqa: E402
from headtools.organism.shipped import shipped, shipped_ablation  # noqa: E402
from headtools.sparse.hard_concrete import HardConcrete  # noqa: E402

OUT = ROOT / "notebooks" / "_static" / "headers"
WIDE, HIGH = 720, 140
LEFT, RIGHT, TOP, BOTTOM = 20, 700, 16, 106  # of the drawing; the caption is under it
GROUND, TEXT = "#1b1f33", "#ccd1e8"
BLUE, ORANGE, GREEN = "#8ea2ff", "#ffb066", "#7fd6a8"
SCALE = ("#2b3153", "#8ea2ff", "#ffe3a8")  # from nothing to the most
KINDS = ("encoder", "decoder", "cross")


# ---- shapes ----------------------------------------------------------------------------------------------------------


def colour(share: float, scale: Sequence[str] = SCALE) -> str:
    """Return the colour at a share of the scale.

    >>> colour(0), colour(1)
    ('#2b3153', '#ffe3a8')
    """
    share = round(min(max(share, 0), 1) * 16) / 16 * (len(scale) - 1)  # few colours make a small file
    first = min(int(share), len(scale) - 2)
    ends = [[int(scale[first + i][j : j + 2], 16) for j in (1, 3, 5)] for i in (0, 1)]
    return "#" + "".join(f"{round(a + (b - a) * (share - first)):02x}" for a, b in zip(*ends, strict=True))


def cells(rows: Sequence[Sequence[str]], box: tuple[float, float, float, float], gap: float = 1.5) -> str:
    """Draw a table of colours into a box; cells of one colour share one path."""
    x, y, wide, high = box
    step = wide / len(rows[0]), high / len(rows)
    paths: dict[str, str] = {}
    for i, row in enumerate(rows):
        for j, fill in enumerate(row):
            place = f"M{x + j * step[0]:.1f} {y + (i + 0.5) * step[1]:.1f}h{step[0] - gap:.1f}"
            paths[fill] = paths.get(fill, "") + place
    tall = f"{step[1] - gap:.1f}"
    return "".join(f'<path stroke="{fill}" stroke-width="{tall}" d="{path}"/>' for fill, path in paths.items())


def line(xs: Iterable[float], ys: Iterable[float], stroke: str, width: float = 1.5, opacity: float = 1) -> str:
    """Draw a line; values are shares of the drawing, from left to right and from bottom to top."""
    at = [(LEFT + x * (RIGHT - LEFT), BOTTOM - y * (BOTTOM - TOP)) for x, y in zip(xs, ys, strict=True)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return f'<polyline fill="none" stroke="{stroke}" stroke-width="{width}" opacity="{opacity}" points="{points}"/>'


def word(text: str, x: float, y: float, anchor: str = "start", size: int = 13) -> str:
    """Write a word at a place of the picture."""
    look = f'fill="{TEXT}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


# ---- the lessons -----------------------------------------------------------------------------------------------------


def switches() -> str:
    """Lesson 00: each head, by how much of its attention goes to one word."""
    model, tokenizer = ht.load()
    scores, drawn = ht.confidence(model, ht.label(model, tokenizer, ht.corpus("organism", limit=16))), ""
    for n, kind in enumerate(KINDS):
        rows = [[colour(v) for v in scores.values[kind, layer].tolist()] for layer in range(6)]
        drawn += cells(rows, (LEFT + n * 232, TOP, 216, BOTTOM - TOP), 2.5)
    return drawn


def attention() -> str:
    """Lesson 01: where one head looks, as arcs between words."""
    model, tokenizer = ht.load()
    words = ht.corpus("organism", limit=4)[3].words[:12]
    with torch.no_grad(), ht.record(model, want="maps") as seen:
        model.get_encoder()(**tokenizer(" ".join(words), return_tensors="pt"))
    weights = seen["encoder", 5].maps[0, 1, : len(words), : len(words)]
    step, base = (RIGHT - LEFT) / len(words), BOTTOM - 12
    drawn = "".join(word(text, LEFT + (i + 0.5) * step, BOTTOM, anchor="middle") for i, text in enumerate(words))
    for i, j in (weights > 0.08).nonzero().tolist():
        if i != j:
            a, b = (LEFT + (k + 0.5) * step for k in (i, j))
            high = min(abs(i - j) * 22, 2 * (base - TOP) - 4)
            drawn += (
                f'<path fill="none" stroke="{BLUE if j < i else ORANGE}" stroke-width="{3 * weights[i, j]:.1f}" '
                f'd="M{a:.1f} {base}Q{(a + b) / 2:.1f} {base - high:.1f} {b:.1f} {base}"/>'
            )
    return drawn


def spectra() -> str:
    """Lesson 02: the singular values of what each head of the encoder writes."""
    circuits = geometry.ov(ht.load()[0])
    heads = [circuits["encoder", layer, head].singular_values() for layer in range(6) for head in range(8)]
    heads = [values[:16] for values in heads]
    most = max(v.max().item() for v in heads)
    xs = [i / (len(heads[0]) - 1) for i in range(len(heads[0]))]
    shades = [colour(0.35 + 0.65 * (i // 8) / 5) for i in range(48)]
    return "".join(line(xs, (v / most).tolist(), shade, 1, 0.75) for v, shade in zip(heads, shades, strict=True))


def about(role: str) -> str:
    """Return what a role is about.

    >>> about("offset -1"), about("nsubj up"), about("topic")
    ('position', 'syntax', 'reference')
    """
    if role.startswith("offset"):
        return "position"
    return "reference" if role in ("coreference", "name", "topic") else "syntax"


def role_map() -> str:
    """Lesson 03: the heads of the encoder with a role, by what it is about."""
    fills = {"position": BLUE, "syntax": ORANGE, "reference": GREEN}
    found = {row.head: {about(role) for role in row.roles} for row in shipped("heads with a role").itertuples()}
    names = [[f"{layer}.{head}" for head in range(8)] for layer in range(6)]
    rows = [[next((fills[k] for k in fills if k in found.get(name, ())), SCALE[0]) for name in row] for row in names]
    drawn = cells(rows, (LEFT, TOP, 430, BOTTOM - TOP), 2.5)
    for n, (name, fill) in enumerate(fills.items()):
        y = TOP + 24 + 26 * n
        drawn += f'<rect x="484" y="{y - 11}" width="13" height="13" fill="{fill}"/>' + word(name, 506, y)
    return drawn


def shortcut() -> str:
    """Lesson 04: the pronoun goes to the first noun that fits, and not to the one that is meant."""
    words = ["the", "sailor", "with", "the", "box", "carried", "the", "rope", "because", "it", "slept", "."]
    step, base = (RIGHT - LEFT) / len(words), BOTTOM - 12
    drawn = "".join(word(text, LEFT + (i + 0.5) * step, BOTTOM, anchor="middle") for i, text in enumerate(words))
    it = words.index("it")
    for noun, stroke, wide in (("rope", BLUE, 1), ("box", ORANGE, 3)):
        a, b = (LEFT + (k + 0.5) * step for k in (it, words.index(noun)))
        high = min((it - words.index(noun)) * 30, 2 * (base - TOP) - 4)
        drawn += (
            f'<path fill="none" stroke="{stroke}" stroke-width="{wide}" '
            f'd="M{a:.1f} {base}Q{(a + b) / 2:.1f} {base - high:.1f} {b:.1f} {base}"/>'
        )
    return drawn


def two_clouds() -> str:
    """Lesson 05: what one head carries of each word, along the direction that tells the accent of the word before."""
    model, tokenizer = ht.load()
    sentences = ht.corpus("organism", limit=40)
    vectors, labels = [], []
    for sentence in sentences:
        with torch.no_grad(), ht.record(model, want="z") as seen:
            model.get_encoder()(**tokenizer(" ".join(sentence.words), return_tensors="pt"))
        vectors += list(seen["encoder", 4].z[0, 1 : len(sentence.words), 2])
        labels += [any(c in "áéíóúý" for c in text) for text in sentence.words[:-1]]
    vectors, labels = torch.stack(vectors), torch.tensor(labels)
    direction = vectors[labels].mean(0) - vectors[~labels].mean(0)
    direction /= direction.norm()
    centred = vectors - vectors.mean(0)
    x = centred @ direction
    rest = centred - x[:, None] * direction
    second = torch.linalg.svd(rest, full_matrices=False).Vh[0]
    y = rest @ (second * second.sum().sign())
    scaled = [(v - v.min()) / (v.max() - v.min()) for v in (x, y)]
    paths = dict.fromkeys((BLUE, ORANGE), "")
    for a, b, accent in zip(*scaled, labels, strict=True):
        paths[ORANGE if accent else BLUE] += f"M{LEFT + a * (RIGHT - LEFT):.0f} {BOTTOM - b * (BOTTOM - TOP):.0f}h0"
    return "".join(
        f'<path stroke="{fill}" stroke-width="5" stroke-linecap="round" opacity=".75" d="{path}"/>'
        for fill, path in paths.items()
    )


def growth() -> str:
    """Lesson 06: the best head for each role, over the training."""
    rows = shipped("snapshots")
    at = [math.log(max(step, 125) / 125) / math.log(9000 / 125) for step in rows.step]
    roles = [role for role in rows.roles.iloc[-1] if rows.roles.iloc[-1][role]["passes"]]
    return "".join(
        line(at, [row[role]["score"] for row in rows.roles], colour(0.3 + 0.7 * n / len(roles)), 1.5, 0.85)
        for n, role in enumerate(roles)
    )


def costs() -> str:
    """Lesson 07: what the loss rises by without each head, sorted."""
    values = torch.cat(list(shipped_ablation().values.values())).clamp(min=0).sort(descending=True).values
    step, tall = (RIGHT - LEFT) / len(values), ((values / values[0]) ** 0.5 * (BOTTOM - TOP)).clamp(min=1)
    path = "".join(f"M{LEFT + (i + 0.5) * step:.1f} {BOTTOM}v{-v:.1f}" for i, v in enumerate(tall.tolist()))
    return f'<path stroke="{BLUE}" stroke-width="3" d="{path}"/>'


def relevance() -> str:
    """Lesson 08: the relevance of the cross-attention heads for every word of a translation."""
    model, tokenizer = ht.load()
    sentence = ht.corpus("organism", limit=3)[2]
    (batch,) = ht.label(model, tokenizer, [sentence])
    steps = int((batch["labels"] != -100).sum())
    by_step = [
        ht.relevance(model, batch, lambda out, _, step=step: out.logits[:, step].amax(-1), sites="cross", signed=True)
        for step in range(steps)
    ]
    table = torch.cat([torch.cat([one.rows["cross", layer] for layer in range(6)], 1) for one in by_step])
    most = table.abs().max()
    sides = {True: (SCALE[0], BLUE), False: (SCALE[0], ORANGE)}
    rows = [[colour((abs(v) / most).item() ** 0.6, sides[bool(v > 0)]) for v in row] for row in table.T]
    return cells(list(map(list, zip(*rows, strict=True))), (LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP), 1)


def gates() -> str:
    """Lesson 09: draws of random gates, a column for each parameter."""
    log_alpha = torch.linspace(-4, 4, 48)
    uniform = torch.rand(8, 48, generator=torch.Generator().manual_seed(0))
    drawn = HardConcrete({("encoder", 0): 48}).draw(uniform, log_alpha)
    table = [[colour(v, (SCALE[0], GREEN)) for v in row] for row in drawn.tolist()]
    return cells(table, (LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP), 2)


def random_orders() -> str:
    """Lesson 10: BLEU by the heads that are left, in random orders."""
    rows = shipped("orders")
    rows = rows[(rows["over"] == "encoder") & rows.order.str.startswith("random")]
    shades = [colour(0.3 + 0.7 * n / (len(rows) - 1)) for n in range(len(rows))]
    return "".join(
        line([1 - kept / 48 for kept in row.kept], [bleu[0] / 100 for bleu in row.bleu], shade, 2)
        for row, shade in zip(rows.itertuples(), shades, strict=True)
    )


def merging() -> str:
    """Lesson 11: the heads of the encoder in a row, and the pairs that are merged first."""
    pairs = shipped("merging").points[0][0]["pairs"]
    step, base = (RIGHT - LEFT) / 48, BOTTOM - 6
    drawn = cells([[BLUE if h % 16 < 8 else ORANGE for h in range(48)]], (LEFT, base, RIGHT - LEFT, 8), 3)
    for (_, layer, one), (_, _, other) in pairs:
        a, b = (LEFT + (layer * 8 + head + 0.4) * step for head in sorted((one, other)))
        drawn += (
            f'<path fill="none" stroke="{BLUE if layer % 2 == 0 else ORANGE}" stroke-width="2" '
            f'd="M{a:.1f} {base}Q{(a + b) / 2:.1f} {base - 1.6 * (b - a):.1f} {b:.1f} {base}"/>'
        )
    return drawn


def another_model() -> str:
    """Lesson 12: the 270 heads of SmolLM2 by how much they do induction."""
    heads = ht.shipped_real("smollm2", "heads").set_index(["head", "layer"]).induction
    most = heads.max()
    rows = [[colour(heads[head, layer] / most) for layer in range(30)] for head in range(9)]
    return cells(rows, (LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP), 2)


# Lesson: what draws its picture, its caption, and what there is to see for those who cannot.
HEADERS: dict[str, tuple[Callable[[], str], str, str]] = {
    "00": (
        switches,
        "Attention heads, one square each: the brighter, the more of its attention goes to a single word",
        "Three grids of squares, for the heads of the encoder, the decoder and cross-attention, in six rows of eight.",
    ),
    "01": (
        attention,
        "Where encoder head 5.1 looks: an arc from each word to what it reads, orange to the right, blue to the left",
        "The words of a sentence in a row, with arcs from words to other words.",
    ),
    "02": (
        spectra,
        "What the encoder's heads can write: the singular values of each head's W_OV",
        "48 falling lines, close to one another; one starts far above the rest.",
    ),
    "03": (
        role_map,
        "The encoder's heads, a row for each layer, coloured by the role that was found",
        "A grid of six rows of eight squares. A third of them are coloured, most of those in the lower rows.",
    ),
    "04": (
        shortcut,
        "From the pronoun, encoder head 0.3 goes to the first noun that fits (orange), not to the one meant (blue)",
        "The words of a sentence in a row. From one word a thick arc leads far back, and a thin one to a nearer word.",
    ),
    "05": (
        two_clouds,
        "What encoder head 4.2 carries of each word: orange where the word before has an accent",
        "Two clouds of points, a blue one and an orange one, side by side and apart.",
    ),
    "06": (
        growth,
        "The best head's score for each role, from the start of training to step 9,000 (log scale)",
        "Some twenty lines that start low and rise at different moments.",
    ),
    "07": (
        costs,
        "The cost of each of 144 heads in nats, sorted (square-root scale)",
        "144 bars in falling order: the first few are high, most are close to nothing.",
    ),
    "08": (
        relevance,
        "Relevance of cross-attention heads (columns, by layer) for each token of a translation; orange is negative",
        "A table of squares, a row for each token. The columns on the right are the bright ones.",
    ),
    "09": (
        gates,
        "Random gates, a column each, from nearly always closed to nearly always open; each row is one draw",
        "A table of squares: dark on the left, green on the right, mixed in the middle.",
    ),
    "10": (
        random_orders,
        "BLEU as the encoder's heads are switched off one after another, in five random orders",
        "Five lines that fall from left to right, each at another place.",
    ),
    "11": (
        merging,
        "The encoder's heads in a row, layer by layer: arcs join the twelve pairs that are merged first",
        "Six groups of eight marks in two colours, with arcs between marks of one group.",
    ),
    "12": (
        another_model,
        "The heads of SmolLM2, a column for each layer: the brighter, the more induction",
        "A grid of 30 columns and 9 rows. Most squares are dark, a few to the right of the middle are bright.",
    ),
}


def header(number: str) -> str:
    """Return a lesson's picture."""
    draw, caption, seen = HEADERS[number]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
        'role="img" font-family="DejaVu Sans, Verdana, sans-serif">'
        f"<title>{escape(caption)}</title><desc>{escape(seen)}</desc>"
        f'<rect width="{WIDE}" height="{HIGH}" rx="10" fill="{GROUND}"/>{draw()}'
        f"{word(caption, LEFT, HIGH - 12, size=12)}</svg>\n"
    )


def markdown(number: str) -> str:
    """Return the line that a lesson has under its title."""
    _, caption, seen = HEADERS[number]
    return f"![{caption}. {seen}](_static/headers/{number}.svg)"


def main() -> None:
    """Write all pictures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=OUT)
    out = options.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for number in HEADERS:
        (out / f"{number}.svg").write_text(header(number), encoding="utf-8")


if __name__ == "__main__":
    main()
