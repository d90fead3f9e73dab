"""Make the course's site from the executed lessons: ``make site``. Warnings are errors; no network is asked.

    python tools/make_site.py                 build/site/index.html
    python tools/make_site.py --out FOLDER

Sphinx makes the lessons, the pages on the package and the pages to look things up. The first page has a template of its
own (``site/course/landing.html``) and holds a part of the live page (:mod:`make_live_page`), which goes into ``live``.
Whatever is told elsewhere (minutes, verdicts, examples) is taken from there each time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html import escape
from pathlib import Path
from urllib.parse import quote

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import make_live_page  # noqa: E402
import site_card  # noqa: E402
import site_claims  # noqa: E402
import site_handouts  # noqa: E402
import site_lessons  # noqa: E402
import site_reference  # noqa: E402
from my_lessons import without_outputs  # noqa: E402

COURSE = ROOT / "site" / "course"
NOTEBOOKS = ROOT / "notebooks"
BOXES = ROOT / "tools" / "jupyter" / "custom" / "custom.css"  # JupyterLab's looks of a lesson, the site's as well
PAGES = {
    "whole_idea": "The whole idea in one file",
    "contract": "What headtools promises",
    "installing": "Installing",
    "cheat_sheet": "Cheat sheet",
    "glossary": "Glossary",
    "heads_since_2022": "Heads since 2022",
    "families": "Which models does headtools know?",
    "scaling": "What runs where",
    "benchmarks": "Benchmarks",
    "truth": "Which measure finds the circuit?",
    "bibliography": "Bibliography",
}
# Where lessons were before what heads look at became two lessons: links to them lead on.
MOVED = {
    "04_does_a_head_know_or_use": "05_does_a_head_know_or_use",
    "05_how_do_heads_specialise": "06_how_do_heads_specialise",
    "06_what_does_the_loss_say": "07_what_does_the_loss_say",
    "07_where_does_the_answer_come_from": "08_where_does_the_answer_come_from",
    "08_which_heads_would_you_keep": "09_which_heads_would_you_keep",
    "09_how_many_heads_can_go": "10_how_many_heads_can_go",
    "10_what_else_can_you_do_to_a_head": "11_what_does_a_head_carry",
    "11_what_do_your_heads_do": "12_what_do_your_heads_do",
}
TEACHING = "teaching"  # for lecturers, so at the end
DESCRIPTION = (
    "A course of thirteen notebooks on what attention heads do and which of them a model needs, with a translation "
    "model that runs in your browser and a Python package for models of your own."
)


def repository() -> str:
    """Return the address of the repository, which pyproject.toml tells once."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]


def home() -> str:
    """Return where the site is published, as pyproject.toml tells it: pictures of links need an address in full."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Homepage"]


def templates() -> Environment:
    """Return jinja2 with the site's templates; it escapes, and refuses names that nothing was given for."""
    loader = FileSystemLoader(COURSE)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)


# ---- what Sphinx makes -----------------------------------------------------------------------------------------------


def gather(source: Path) -> None:
    """Put together, in an empty folder, what Sphinx reads: lessons, pages, and the pages made from them."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    written = [NOTEBOOKS / f"{name}.md" for name in (*PAGES, TEACHING) if name != "whole_idea"]
    (source / "more").mkdir(parents=True)
    for name in notebooks():
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        notebook.cells[0].source += f"\n\n{doors(name)}"
        nbformat.write(notebook, source / name)
    for path in [NOTEBOOKS / "conf.py", *written]:
        shutil.copy(path, source / path.name)
    shutil.copytree(NOTEBOOKS / "_static", source / "_static")
    for name in ("favicon.svg", "claims.js"):
        shutil.copy(COURSE / name, source / "_static" / name)
    style = "\n".join(path.read_text("utf-8") for path in (COURSE.parent / "identity.css", BOXES, COURSE / "pages.css"))
    (source / "_static" / "site.css").write_text(style, encoding="utf-8")
    shutil.copytree(COURSE / "furo", source / "_templates")
    for name in ("top.html", "meta.html"):
        shutil.copy(COURSE / name, source / "_templates" / name)
    index = (NOTEBOOKS / "index.md").read_text("utf-8") + contents()
    (source / "index.md").write_text(index, encoding="utf-8")
    (source / "claims.md").write_text(claims(), encoding="utf-8")
    (source / "whole_idea.md").write_text(whole_idea(), encoding="utf-8")
    (source / "_templates" / "claims_found.html").write_text(claims_found(), encoding="utf-8")
    for folder, made in (("reference", site_reference.pages()), (site_handouts.FOLDER, site_handouts.pages(NOTEBOOKS))):
        (source / folder).mkdir()
        for name, text in made.items():
            (source / folder / name).write_text(text, encoding="utf-8")


def notebooks() -> list[str]:
    """Return the lessons and appendices, by their paths in the folder of notebooks."""
    appendices = sorted((NOTEBOOKS / "more").glob("*.ipynb"))
    return [path.relative_to(NOTEBOOKS).as_posix() for path in [*site_lessons.paths(NOTEBOOKS), *appendices]]


def doors(name: str) -> str:
    """Return where a notebook can be opened, as a line of its page."""
    first, run = "00_start_here.ipynb", starts()
    links = {
        "Run it on Binder": run["binder"].replace(first, quote(name, safe="")),
        "Open in Colab": run["colab"].replace(first, name),
        "Download the notebook": f"{'../' * name.count('/')}notebooks/{name}",
    }
    opened = (f'<a href="{escape(to)}"{"" if ":" in to else " download"}>{words}</a>' for words, to in links.items())
    return f'<p class="doors">{" ".join(opened)}</p>'


def downloads(folder: Path) -> None:
    """Write the notebooks without outputs, as a learner begins them; their pictures are those of the site."""
    for name in notebooks():
        text = without_outputs((NOTEBOOKS / name).read_text("utf-8"))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(re.sub(r"\]\((\.\./)?_static/", f"]({home()}_static/", text), encoding="utf-8")


def contents() -> str:
    """Return the hidden tables of contents that make the side bar."""
    blocks = {
        "Lessons": [path.stem for path in site_lessons.paths(NOTEBOOKS)],
        "Appendices": [f"more/{path.stem}" for path in sorted((NOTEBOOKS / "more").glob("*.ipynb"))],
        "Look up": ["claims", *PAGES],
        "API": [f"reference/{name}" for name in ("index", *site_reference.ROOMS)],
        "For lecturers": [TEACHING, f"{site_handouts.FOLDER}/index"],
    }
    block = "\n```{{toctree}}\n:hidden:\n:caption: {}\n\n{}\n```\n"
    return "".join(block.format(name, "\n".join(pages)) for name, pages in blocks.items())


def whole_idea() -> str:
    """Return the page that shows the one file to read first."""
    code = (ROOT / "headtools" / "course" / "my_heads.py").read_text("utf-8")
    return f"# {PAGES['whole_idea']}\n\n```python\n{code}```\n"


def claims() -> str:
    """Return the page of the claims: Markdown around a table in HTML."""
    context = site_claims.context(NOTEBOOKS)
    environment = templates()
    table = re.sub(r"\n\s*\n", "\n", environment.get_template("claims.html").render(context))
    return environment.get_template("claims.md").render(context | {"table": _Raw(table)})


def claims_found() -> str:
    """Return the claims for the page of the search, as they are: Sphinx reads it as a template."""
    html = templates().get_template("claims_found.html").render(site_claims.context(NOTEBOOKS))
    return f"{{% raw %}}{html}{{% endraw %}}"


class _Raw(str):
    """HTML that a template need not escape."""

    def __html__(self) -> str:
        return self


def mend(html: str) -> str:
    """Return a page that keyboards and screen readers can use: what the theme leaves out, put in.

    >>> mend('<p class="caption" role="heading">A</p><pre>wide</pre>')
    '<p class="caption" role="heading" aria-level="2">A</p><pre tabindex="0">wide</pre>'
    """
    for found, better in (
        ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
        ("<pre>", '<pre tabindex="0">'),  # what scrolls must take the focus
        ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
        ('<div style="overflow-x:auto">', '<div tabindex="0" style="overflow-x:auto">'),
        ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
        ('<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
        ('<div class="content-icon', '<div role="region" aria-label="This page" class="content-icon'),
    ):
        html = html.replace(found, better)
    html = re.sub(r'<th class="head">(?:<p></p>)?</th>', "<td></td>", html)  # the corner of a table heads nothing
    skip = r'<a class="skip-to-content muted-link" href="#furo-main-content">\s*Skip to content\s*</a>'
    return re.sub(rf"({skip}.*?){skip}", r"\1", html, count=1, flags=re.S)  # ours comes before the bar


# ---- the first page --------------------------------------------------------------------------------------------------


def landing(out: Path, live: make_live_page.Live) -> None:
    """Write the first page, with the stills of the live page, and what only it needs."""
    static = out / "_static"
    cards = site_lessons.lessons(NOTEBOOKS, ROOT / "README.md", static / "cards", "_static/cards")
    entries = site_claims.entries(NOTEBOOKS)
    first = live.data["sentences"][live.data["first"]["sentence"]]
    page = (
        templates()
        .get_template("landing.html")
        .render(
            description=DESCRIPTION,
            title="headtools: a course on attention heads",
            page="",
            home=home(),
            repository=repository(),
            at="",
            here="index.html",
            own_theme=True,
            lessons=cards,
            stills={name: _Raw(text) for name, text in live.stills.items()},
            source=first["source"],
            claims=len(entries),
            verdicts=_counted(site_claims.counts(entries)),
            look_up=looked_up(),
            **starts(),
        )
    )
    (out / "index.html").write_text(page, encoding="utf-8")
    (static / "landing.css").write_text(make_live_page.style(COURSE / "landing.css"), encoding="utf-8")
    (static / "hero.js").write_text(make_live_page.bundle(entry="hero.js"), encoding="utf-8")
    site_card.write(live.model, live.data["first"]["sentence"], static / "card.png")


def starts() -> dict[str, str]:
    """Return where lesson 00 can be run, as README.md has it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    found = {name: re.search(rf"\((https://{host}\S+)\)", readme) for name, host in _HOSTS.items()}
    if lost := [name for name, link in found.items() if link is None]:
        raise ValueError(f"README.md has no link to {lost[0]} any more, which the first page repeats")
    return {name: link[1] for name, link in found.items()}


_HOSTS = {"binder": r"mybinder\.org/v2/", "colab": r"colab\.research\.google\.com/github/"}


def looked_up() -> list[tuple[str, str]]:
    """Return pages to look things up in, with their names."""
    return [(f"{name}.html", title) for name, title in {**PAGES, TEACHING: "For lecturers"}.items()]


def _counted(counts: dict[str, int]) -> str:
    first, *others = [f"{n} {verdict}" for verdict, n in counts.items()]
    return f"{', '.join([first, *others[:-1]])} and {others[-1]}"


# ---- all of it -------------------------------------------------------------------------------------------------------


def build(out: Path) -> int:
    """Make the site in a folder, anew; returns Sphinx's exit status."""
    source = out.parent / f"{out.name}-source"
    gather(source)
    shutil.rmtree(out, ignore_errors=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path, "SITE_HOME": home(), "SITE_REPOSITORY": repository(), "SITE_DESCRIPTION": DESCRIPTION}
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(source), str(out)]
    status = subprocess.run(command, check=False, env={**os.environ, **env}).returncode
    for page in out.rglob("*.html"):
        page.write_text(mend(page.read_text("utf-8")), encoding="utf-8")
    landing(out, make_live_page.make(out / "live"))
    downloads(out / "notebooks")
    for old, new in MOVED.items():
        (out / f"{old}.html").write_text(_moved(f"{new}.html"), encoding="utf-8")
    return status


def _moved(page: str) -> str:
    """Return a page that leads to another one, for links to where it was."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Moved</title>'
        f'<meta http-equiv="refresh" content="0; url={page}"><link rel="canonical" href="{page}">'
        f'<p>This lesson has another number now: <a href="{page}">{page}</a>.</p></html>\n'
    )


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
