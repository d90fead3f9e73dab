"""The picture that other sites show beside a link: the model's attention maps, some of its heads crossed out."""

from __future__ import annotations

import random
from pathlib import Path

import live_stills
import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from torch import nn

SIZE = (1200, 630)
PAPER, INK, SOFT, WRONG = "#0b0c16", "#eef0fb", "#a7acca", "#ff86a4"
HUES = {"encoder": "#93a1ff", "cross": "#ffb26b", "decoder": "#56dcc0"}
TILE, OFF = 40, 20  # pixels of a head; heads crossed out


def card(model: nn.Module, number: int) -> Image.Image:
    """Draw the card from the maps of a sentence of the test set, given by its number."""
    image = Image.new("RGB", SIZE, PAPER)
    draw, chance = ImageDraw.Draw(image), random.Random(3)
    draw.text((60, 52), "144 attention heads,", INK, _font(58))
    draw.text((60, 120), "and a switch for each.", INK, _font(58))
    draw.text((60, 212), "headtools: a course and a Python package", SOFT, _font(28, "normal"))
    gap = (SIZE[0] - 120 - 3 * 8 * TILE) // 2
    for at, (kind, maps) in enumerate(live_stills.maps(model, number).items()):
        left, top = 60 + at * (8 * TILE + gap), SIZE[1] - 70 - len(maps) * TILE
        draw.text((left, top - 44), live_stills.KINDS[kind], HUES[kind], _font(24))
        for row, layer in enumerate(maps):
            for column, weights in enumerate(layer):
                place = left + column * TILE, top + row * TILE
                off = chance.random() < OFF / 144
                _tile(image, place, weights.numpy(), HUES[kind], 0.2 if off else 1)
                if off:
                    x, y = place
                    draw.line((x + 4, y + TILE - 6, x + TILE - 6, y + 4), WRONG, 4)
    return image


def write(model: nn.Module, number: int, path: Path) -> None:
    """Write the card as PNG."""
    card(model, number).save(path, optimize=True)


def _tile(image: Image.Image, place: tuple[int, int], weights: np.ndarray, hue: str, strength: float) -> None:
    inside = (TILE - 4, TILE - 4)
    box = (*place, place[0] + inside[0], place[1] + inside[1])
    image.paste(hue, box, Image.new("L", inside, round(28 * strength)))
    opacity = Image.fromarray(np.uint8(255 * strength * np.sqrt(weights)))
    image.paste(hue, box, opacity.resize(inside, Image.Resampling.NEAREST))


def _font(size: int, weight: str = "bold") -> ImageFont.FreeTypeFont:
    """Return the font that matplotlib brings along: the same on every machine."""
    font = font_manager.FontProperties(family="DejaVu Sans", weight=weight)
    return ImageFont.truetype(font_manager.findfont(font), size)
