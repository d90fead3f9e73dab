"""Make the README's moving picture from the live page: heads go off one after another, and words go wrong.

    make picture           writes notebooks/_static/live.gif

Which heads go is read from the page's own tour, so that the picture follows the model that ships.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools")]

import make_live_page  # noqa: E402

PICTURE = ROOT / "notebooks" / "_static" / "live.gif"
SIZE = {"width": 1280, "height": 1000}
WIDTH, COLORS = 960, 224  # of the picture: small enough to load at once
MILLISECONDS = 1_600
HEADS = "[...new Set(Object.values(headtoolsLive.course.tour).flatMap(step => step.heads ?? []))].slice(0, 6)"


def frames(page_address: str) -> list[Image.Image]:
    """Return pictures of the page: all heads on, then one more off in each."""
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport=SIZE)
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto(page_address)
        page.wait_for_selector("html.alive")

        def shot() -> Image.Image:
            page.wait_for_timeout(400)
            return Image.open(io.BytesIO(page.screenshot())).convert("RGB")

        pictures = [shot()]
        for head in page.evaluate(HEADS):
            page.click(f"[data-head='{head}']")
            pictures.append(shot())
        chromium.close()
    return pictures


def save(pictures: list[Image.Image], path: Path) -> None:
    """Write an animated GIF, all frames in the colours of the last one, which has all that are needed."""
    small = [p.resize((WIDTH, WIDTH * p.height // p.width), Image.Resampling.LANCZOS) for p in pictures]
    palette = small[-1].quantize(COLORS)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in small]
    path.parent.mkdir(parents=True, exist_ok=True)
    first.save(path, save_all=True, append_images=rest, duration=MILLISECONDS, loop=0, optimize=True)


def main() -> None:
    """Make the live page, take its pictures, write the GIF."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE)
    out = parser.parse_args().out
    page = ROOT / "build" / "live"
    make_live_page.build(page)
    save(frames((page / "index.html").as_uri()), out)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
