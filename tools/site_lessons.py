"""What the site says of each lesson: its question, its difficulty, its minutes, and a picture from its own figures."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
from honest_minutes import honest_minutes
from PIL import Image, ImageOps

SIZE = (640, 360)  # pixels of a card's picture, twice what it is shown at


@dataclass(frozen=True)
class Picture:
    """A part of a figure: what its cell holds, the part as shares of width and height, and whether it is on white.

    A chart is shown whole, on white; a map fills the picture.
    """

    cell: str
    part: tuple[float, float, float, float] = (0, 0, 1, 1)
    chart: bool = True


PICTURES = {
    "00": Picture('"00.map"', (0.047, 0.47, 0.26, 0.868), chart=False),
    "01": Picture('"01.arcs"', (0.02, 0.33, 0.505, 1)),
    "02": Picture('"02.overlap"', (0.3, 0.53, 0.758, 0.9), chart=False),
    "03": Picture('"03.role_map"', (0.035, 0, 1, 0.81)),
    "04": Picture('"04.coreference"', (0, 0.07, 1, 1)),
    "05": Picture('"05.accent"', (0, 0.07, 1, 1)),
    "06": Picture('"06.maps"', (0.504, 0.46, 0.835, 0.925), chart=False),
    "07": Picture('"07.scatter"', (0.04, 0.07, 1, 0.93)),
    "08": Picture('"08.rules"', (0, 0.1, 1, 1)),
    "09": Picture('"09.closing"', (0.05, 0.04, 0.78, 0.9), chart=False),
    "10": Picture('"10.curve"', (0, 0.07, 1, 1)),
    "11": Picture('"11.plane"', (0.03, 0.08, 0.515, 0.93)),
    "12": Picture('"12.luck"'),
}


@dataclass(frozen=True)
class Lesson:
    """A lesson as its card shows it; minutes are whole."""

    page: str
    number: str
    question: str
    about: str
    difficulty: int
    minutes: int
    running: int
    picture: str
    size: tuple[int, int]
    chart: bool


def paths(folder: Path) -> list[Path]:
    """Return the lessons in a folder, in order."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def lessons(folder: Path, readme: Path, pictures: Path, address: str) -> list[Lesson]:
    """Return all lessons; writes their pictures into the folder ``pictures``, which pages find at ``address``."""
    measured = json.loads((folder / "measured.json").read_text("utf-8"))["lessons"]
    row = r"^\| \[\d\d\]\S+ \| \[.*?\]\(notebooks/(\w+)\.ipynb\) \| (.*?) \|"
    abouts = dict(re.findall(row, readme.read_text("utf-8"), re.M))
    pictures.mkdir(parents=True, exist_ok=True)
    found = []
    for path in paths(folder):
        notebook, number = nbformat.read(path, as_version=4), path.name[:2]
        if path.stem not in abouts:
            raise ValueError(f"README.md has no row on {path.name}; its card takes from there what it is about")
        image = picture(notebook, number)
        image.save(pictures / f"{number}.png", optimize=True)
        top = notebook.cells[0].source
        found.append(
            Lesson(
                page=f"{path.stem}.html",
                number=number,
                question=re.search(r"^# \d\d · (.+)", top)[1],
                about=_sentence(abouts[path.stem]),
                difficulty=difficulty(path.name, top),
                minutes=honest_minutes(notebook, measured[path.stem]["seconds"]),
                running=max(1, round(measured[path.stem]["seconds"] / 60)),
                picture=f"{address}/{number}.png",
                size=SIZE,
                chart=PICTURES[number].chart,
            )
        )
    return found


def difficulty(name: str, top: str) -> int:
    """Return the difficulty that the box of a lesson tells, 1 to 3."""
    match = re.search(r"Difficulty\*\* ([123]) of 3", top)
    if match is None:
        raise ValueError(f"the box of {name} lacks its difficulty: write **Difficulty** 2 of 3")
    return int(match[1])


def picture(notebook: nbformat.NotebookNode, number: str) -> Image.Image:
    """Return the picture of a lesson's card. Raises ``ValueError`` where its figure is not there any more."""
    wanted = PICTURES[number]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html", "")
            drawn = re.search(r'src="data:image/png;base64,([^"]+)"', html)
            if drawn and (wanted.cell in cell.source or wanted.cell in html):
                image = Image.open(io.BytesIO(base64.b64decode(drawn[1]))).convert("RGBA")
                whole = Image.new("RGB", image.size, "white")
                whole.paste(image, mask=image.getchannel("A"))
                wide, high = whole.size
                left, top, right, bottom = wanted.part
                part = whole.crop((round(left * wide), round(top * high), round(right * wide), round(bottom * high)))
                return on_white(part) if wanted.chart else ImageOps.fit(part, SIZE, Image.Resampling.LANCZOS)
    raise ValueError(f"lesson {number} has no figure with {wanted.cell!r} any more: name another one in PICTURES")


def on_white(part: Image.Image) -> Image.Image:
    """Return a part of a figure as large as it fits on a white card, with a margin."""
    small = ImageOps.contain(part, (SIZE[0] - 40, SIZE[1] - 28), Image.Resampling.LANCZOS)
    card = Image.new("RGB", SIZE, "white")
    card.paste(small, ((SIZE[0] - small.width) // 2, (SIZE[1] - small.height) // 2))
    return card


def _sentence(text: str) -> str:
    """Return a row of the README's table as a sentence without Markdown."""
    text = text.replace("`", "")
    return f"{text[0].upper()}{text[1:]}."
