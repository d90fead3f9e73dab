"""What a notebook shows of scores, sites, roles and a verification: small drawings in the colours of the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isnan, nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from headtools.heads.scores import HeadScores
    from headtools.heads.sites import Sites
    from headtools.heads.verify import Verification

STEP, LEFT, WIDE = 16, 220, 260  # pixels from line to line, of the names at the left, and of the longest bar
MOST = 1500  # heads; of more than these the text says enough
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by all eyes (Okabe and Ito)


def scores_html(scores: HeadScores) -> str | None:
    """Draw all heads, the stronger the larger the score (orange: below 0), and bars of the five highest."""
    if len(scores) > MOST:
        return None
    largest, cells, told = float(scores.flat().abs().max()) or 1, {key: [] for key in scores.values}, {}
    for head in scores:
        ends = [float(of[head[:-1]][head[-1]]) if of and head[:-1] in of else nan for of in (scores.low, scores.high)]
        says = f"scores[{_code(head)}]: {scores[head]:.3g}" + ("" if isnan(sum(ends)) else ", {:.3g} to {:.3g}")
        told[head] = (says.format(*ends), scores[head], *ends, nan)
        cells[head[:-1]].append((scores[head] / largest, told[head][0]))
    bars = [(head_name(head), *told[head]) for head in scores.top(min(5, len(scores)))]
    return f"<div>{escape(repr(scores))}<br>{_grid(cells)}<br>{_bars(bars)}</div>"


def sites_html(sites: Sites) -> str | None:
    """Draw all heads; neighbours that share keys and values have one shade."""
    if not 0 < sites.n_heads <= MOST:
        return None
    cells = {}
    for site in sites:
        size = site.heads // site.kv_heads
        shades = [0.6 if size == 1 or head // size % 2 else 0.25 for head in range(0 if site.empty else site.heads)]
        cells[site.key] = [(shade, f"{{({_code(site.key)}): [{head}]}}") for head, shade in enumerate(shades)]
    skipped = f", skipped: {', '.join(sites.skipped)}" if sites.skipped else ""
    return f"<div>{len(sites)} sites, {sites.n_heads} heads{escape(skipped)}<br>{_grid(cells)}</div>"


def roles_html(table: pd.DataFrame) -> str:
    """Draw the best head of each role that has a share as its score, with its interval and, as a line, the baseline."""
    shares = table[(table.score >= 0) & (table.score <= 1)]  # and not NaN
    best = shares.loc[shares.groupby("role", sort=False).score.idxmax()]
    bars = []
    for row in best.assign(margin=best.score - best.baseline).nlargest(20, "margin").itertuples():
        head = (*([row.stack] if "stack" in table else []), row.kind, row.layer, row.head)
        told = f"{_code(head)}: {row.score:.3g}, {row.baseline_rule} {row.baseline:.3g}"
        bars.append((f"{row.role}: {head_name(head)}", told, row.score, row.low, row.high, row.baseline))
    return (
        f"<div>The best head of each role, up to twenty by their margin over a baseline (line)<br>{_bars(bars)}</div>"
    )


def verified_html(tried: Verification) -> str:
    """Return the table with what holds in green and what fails in orange."""
    colours = {"ok": f'<b style="color:{GREEN}">ok</b>', "FAILS": f'<b style="color:{ORANGE}">FAILS</b>'}
    table = re.sub(r"(?<=  )(ok|FAILS)(?=  |$)", lambda mark: colours[mark[0]], escape(repr(tried)), flags=re.M)
    return f"<pre>{table}</pre>"


def _code(key: Iterable) -> str:
    return ", ".join(json.dumps(part) if isinstance(part, str) else str(part) for part in key)


def head_name(head: Sequence) -> str:
    """Write a head's name.

    >>> head_name(("encoder", 5, 1))
    'encoder 5.1'
    """
    return f"{' '.join(map(str, head[:-2]))} {head[-2]}.{head[-1]}"


def _grid(cells: Mapping[tuple, Sequence[tuple[float, str]]]) -> str:
    """A square for each (share of the strongest colour, what hovering tells), a line for each site."""
    parts = []
    for y, (key, row) in enumerate(cells.items()):
        parts.append(_text(LEFT - 8, y, " ".join(map(str, key)), "end"))
        parts += [_box(LEFT + x * STEP, y, STEP - 2, share, told) for x, (share, told) in enumerate(row)]
    return _svg("Heads, a line for each site", parts, LEFT + STEP * max(map(len, cells.values())), len(cells))


def _bars(rows: Sequence[tuple[str, str, float, float, float, float]]) -> str:
    """A bar from 0 for each (name, what hovering tells, value, low, high, baseline); what is NaN is left out."""
    numbers = [0.0, *(number for row in rows for number in row[2:] if not isnan(number))]
    scale = WIDE / ((max(numbers) - min(numbers)) or 1)
    parts = []
    for y, (name, told, *given) in enumerate(rows):
        zero, value, low, high, baseline = (LEFT + scale * (number - min(numbers)) for number in (0, *given))
        parts += [_text(LEFT - 8, y, name, "end"), _text(LEFT + WIDE + 8, y, f"{given[0]:.3g}", "start")]
        parts.append(_box(min(zero, value), y, abs(value - zero), 0.5 if value >= zero else -0.5, told))
        for x1, x2, up, down in ((low, high, 8, 8), (baseline, baseline, 1, 15)):
            if not isnan(x1 + x2):
                parts.append(f'<path d="M{x1:.0f} {y * STEP + up}L{x2:.0f} {y * STEP + down}" stroke-width="2"/>')
    return _svg("Bars with intervals", parts, LEFT + WIDE + 70, len(rows))


def _text(x: float, y: int, text: str, anchor: str) -> str:
    look = f'text-anchor="{anchor}" fill="currentColor" stroke="none"'
    return f'<text x="{x}" y="{y * STEP + 12}" {look}>{escape(text)}</text>'


def _box(x: float, y: int, width: float, share: float, told: str) -> str:
    look = f'fill="{BLUE if share >= 0 else ORANGE}" fill-opacity="{abs(share):.2f}" stroke-opacity=".3"'
    place = f'x="{x:.0f}" y="{y * STEP + 1}" width="{width:.0f}" height="{STEP - 2}"'
    return f"<rect {place} {look}><title>{escape(told)}</title></rect>"


def _svg(label: str, parts: Sequence[str], width: int, lines: int) -> str:
    look = f'role="img" aria-label="{label}" font-size="12" stroke="currentColor" style="max-width:100%"'
    return f'<svg width="{width}" height="{lines * STEP + 2}" {look}>{"".join(parts)}</svg>'
