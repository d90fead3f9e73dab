"""Make the course's site from the executed lessons: ``make site``. Warnings are errors; no network is asked.

    python tools/make_site.py                 build/site/index.html
    python tools/make_site.py --out FOLDER

The live page, in which heads are switched off in the browser, goes into ``live`` (:mod:`make_live_page`).

Pages that repeat what is told elsewhere (the ledger, the lesson table, the reference) are written from there each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import make_live_page  # noqa: E402
from site_pages import home, ledger, lessons, reference, toc  # noqa: E402

PAGES = ("installing.md", "cheat_sheet.md", "scaling.md", "benchmarks.md", "glossary.md", "bibliography.md")
TEACHING = "teaching.md"  # for lecturers, so at the end


def gather(source: Path) -> None:
    """Put together, in an empty folder, what Sphinx reads: lessons, pages, and the pages made from them."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    notebooks = ROOT / "notebooks"
    for path in [*lessons(notebooks), notebooks / "conf.py", *(notebooks / name for name in (*PAGES, TEACHING))]:
        shutil.copy(path, source / path.name)
    shutil.copytree(notebooks / "_static", source / "_static")
    index = home(notebooks / "index.md", ROOT / "README.md") + toc(lessons(notebooks), PAGES)
    (source / "index.md").write_text(index, encoding="utf-8")
    (source / "ledger.md").write_text(ledger(notebooks), encoding="utf-8")
    (source / "reference").mkdir()
    for name, text in reference().items():
        (source / "reference" / name).write_text(text, encoding="utf-8")


def mend(html: str) -> str:
    """Return a page that keyboards and screen readers can use: what the theme leaves out, put in.

    >>> mend('<p class="caption" role="heading">A</p><pre>wide</pre>')
    '<p class="caption" role="heading" aria-level="2">A</p><pre tabindex="0">wide</pre>'
    """
    html = html.replace('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">')
    return html.replace("<pre>", '<pre tabindex="0">')  # a wide cell scrolls, so it must take the focus


def build(out: Path) -> int:
    """Make the site in a folder, anew; returns Sphinx's exit status."""
    source = out.parent / f"{out.name}-source"
    gather(source)
    shutil.rmtree(out, ignore_errors=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(source), str(out)]
    status = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": path}).returncode
    for page in out.rglob("*.html"):
        page.write_text(mend(page.read_text("utf-8")), encoding="utf-8")
    make_live_page.build(out / "live")
    return status


def main() -> int:
    """Make the site and tell where it is."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out = options.parse_args().out.resolve()
    status = build(out)
    print(f"{out / 'index.html'}" if status == 0 else "the site was not made", file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
