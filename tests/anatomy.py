"""The anatomy of a lesson: rules, each a function from a notebook to a list of complaints.

``complaints(notebook)`` runs them all. A new rule is a function here, decorated with ``@rule``, and a broken notebook
in test_notebook_anatomy.py that shows it can fail. What rules read out of cells and outputs is in lesson_parts.py.
"""

from __future__ import annotations

import ast
import json
import platform
import re
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import unquote

import nbformat
from lesson_parts import Notebook, Page, headings, images, links, prose, slug, text
from measure_notebooks import BOX, fingerprint, words, work

from headtools.course import catalogue

MEGABYTES = 1000
COLUMNS = 90  # what fits a cell 800 pixels wide
OUTPUT_BYTES = 150_000
FILE_BYTES = 700_000
BANNED_WORDS = ("simply", "obviously", "as you can see")
RANDOM = re.compile(
    r"torch\.(rand|randn|randint|randperm|bernoulli|multinomial|normal)\b|np\.random\.|\bnn\.[A-Z]\w+\("
)
SEEDED = re.compile(r"manual_seed\(|default_rng\(\s*\d|random\.seed\(|\bset_seed\(|generator=")
LOCAL_PATH = re.compile(
    r"(?<![\w/.])/(?:home|Users|root|tmp|private|work|workspace|opt|mnt|var|usr)/\w|\b[A-Z]:\\\\?\w"
)
LOCAL_HOST = re.compile(r"\b(?:localhost|127\.0\.0\.1)\b(?::\d+)?")
MASKS = {"head_mask", "decoder_head_mask", "cross_attn_head_mask", "encoder_head_mask"}

INSTALL = """from importlib.util import find_spec

if not find_spec("headtools"):  # on Colab: installs the package, in a minute or two
    package = "headtools[colab] @ git+https://github.com/headtools/headtools"
    get_ipython().system(f"echo Installing headtools ...; pip install -q '{package}'")

"""
Rule = Callable[[Notebook], list[str]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Add a rule to the list of rules."""
    RULES[function.__name__] = function
    return function


def complaints(notebook: Notebook) -> list[str]:
    """Everything that is wrong with a notebook, each with the name of the rule."""
    return [f"{name}: {complaint}" for name, check in RULES.items() for complaint in check(notebook)]


@rule
def valid_format(notebook: Notebook) -> list[str]:
    """The file is what the notebook format says, and names a kernel that every installation has."""
    found = []
    try:
        nbformat.validate(notebook.nb)
    except nbformat.ValidationError as error:
        found.append(f"not a valid notebook: {str(error).splitlines()[0]}")
    kernel = notebook.nb.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        found.append(f"the kernel must be named python3, got {kernel!r}")
    if "widgets" in notebook.nb.metadata:
        found.append("metadata.widgets is stored: a page would ask a network for the widgets; run `make notebooks`")
    return found


@rule
def title_asks(notebook: Notebook) -> list[str]:
    """The first cell starts with the only H1, and it is a question."""
    titles = [title for level, title in headings(notebook.markdown) if level == 1]
    first = text(notebook.nb.cells[0]).lstrip().splitlines()[0] if notebook.nb.cells else ""
    if not first.startswith("# "):
        return ["the first cell must start with the title, '# ...?'"]
    found = [] if first.rstrip().endswith("?") else [f"the title must be a question: {first!r}"]
    return found + ([f"one title, not {len(titles)}: {titles}"] if len(titles) > 1 else [])


@rule
def box_tells(notebook: Notebook) -> list[str]:
    """Near the top a box says what you will be able to do, what you need, and the measured minutes and megabytes."""
    top = "\n".join(text(cell) for cell in notebook.nb.cells[:3] if cell.cell_type == "markdown")
    wanted = ("You will be able to", "You need", "minutes for reading")
    found = [f"the box lacks {part!r}" for part in wanted if part not in top]
    if not re.search(r"\*\*Difficulty\*\* [123] of 3: ", top):
        found.append("the box lacks '**Difficulty** N of 3: what it takes'")
    box = BOX.search(top)
    if box is None:
        return [*found, "the box lacks 'N minutes, M MB'"]
    if notebook.measured is None:
        return [*found, "nothing is measured: run `make measure`"]
    if box[0] != words(notebook.measured):
        found.append(f"the box says {box[0]!r}, measured.json {words(notebook.measured)!r}; run `make measure`")
    if work(notebook.nb, notebook.measured) not in top:
        found.append(f"the box does not say {work(notebook.nb, notebook.measured)!r}; run `make measure`")
    if notebook.measured["code"] != fingerprint(notebook.nb):
        found.append("the code was changed since it was measured: run `make notebooks`")
    if notebook.measured["megabytes"] > MEGABYTES:
        found.append(f"{notebook.measured['megabytes']} MB, at most {MEGABYTES}")
    return found


@rule
def setup_imports_only(notebook: Notebook) -> list[str]:
    """The first code cell installs the package where there is none, as in all lessons, and holds imports."""
    if not notebook.code:
        return ["there is no code"]
    source = text(notebook.code[0])
    tree = ast.parse(source.removeprefix(INSTALL))
    if not tree.body:
        return ["the first code cell must be imports"]
    other = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    found = [f"the set-up cell holds more than imports: {ast.unparse(node)[:60]!r}" for node in other]
    return found if source.startswith(INSTALL) else [*found, "the first code cell must begin as in all lessons"]


@rule
def was_run(notebook: Notebook) -> list[str]:
    """Every code cell was run, once, in order, without an error; no cell is empty."""
    found = ["an empty cell" for cell in notebook.nb.cells if not text(cell).strip()]
    counts = [cell.get("execution_count") for cell in notebook.code]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"cells were not run in order from a fresh kernel: {counts}; run `make notebooks`")
    found += [f"an error is stored: {out.get('ename')}" for out in notebook.outputs if out.output_type == "error"]
    noise = [out for out in notebook.outputs if out.output_type == "stream" and out.name == "stderr"]
    return found + [f"a message on stderr is stored: {text(out, 'text')[:60]!r}" for out in noise]


@rule
def sizes(notebook: Notebook) -> list[str]:
    """Each output under 150 kB, the file under 700 kB."""
    found = []
    for out in notebook.outputs:
        size = len(json.dumps(out))
        if size > OUTPUT_BYTES:
            found.append(f"an output of {size / 1000:.0f} kB, at most {OUTPUT_BYTES / 1000:.0f}")
    size = notebook.path.stat().st_size
    if size > FILE_BYTES:
        found.append(f"the file has {size / 1000:.0f} kB, at most {FILE_BYTES / 1000:.0f}")
    return found


@rule
def pictures_speak(notebook: Notebook) -> list[str]:
    """Every image has a text for who cannot see it; every picture in an output comes with its claim as plain text."""
    mute = [src for src, alt in images(notebook) if not (alt or "").strip()]
    found = [f"an image without alt text: {str(src)[:50]!r}" for src in mute]
    for out in notebook.outputs:
        data = out.get("data", {})
        page = Page(text(data, "text/html"))
        drawn = [mime for mime in data if mime.startswith("image/")] or [src for src, _ in page.images]
        claim = text(data, "text/plain").strip()
        if drawn and (claim.startswith("<") or len(claim.split()) < 4):
            found.append(f"a picture without a claim, its plain text is {claim[:50]!r}: use figure(fig, key)")
        if drawn and page.figures and not page.captions:
            found.append(f"a <figure> without a caption: {claim[:50]!r}")
    return found


@rule
def captions_shown(notebook: Notebook) -> list[str]:
    """What ``ht.measured`` and ``ht.figure`` return is shown: a cell that calls one of them has an output."""
    found = []
    for cell in notebook.code:
        called = re.findall(r"\b(?:measured|figure)\(.*?\"\d\d\.(\w+)\"", text(cell))
        if called and not any("data" in out for out in cell.outputs):
            found.append(f"{called[-1]!r} is not shown: make it the last expression of its cell")
    return found


@rule
def heading_levels(notebook: Notebook) -> list[str]:
    """Headings go down one level at a time."""
    steps = [(above, *below) for (above, _), below in pairwise(headings(notebook.markdown))]
    return [f"{title!r} jumps from level {above} to {level}" for above, level, title in steps if level > above + 1]


@rule
def sections(notebook: Notebook) -> list[str]:
    """The lesson ends with what it did not show and its references."""
    titles = [title.lower() for _, title in headings(notebook.markdown)]
    return [f"no section {want!r}" for want in ("What we did not show", "References") if want.lower() not in titles]


@rule
def links_resolve(notebook: Notebook) -> list[str]:
    """Relative links lead to files, ``#`` links to headings; the last cell leads to the lessons before and after."""
    anchors = {slug(title) for _, title in headings(notebook.markdown)}
    found, last = [], []
    for cell in notebook.nb.cells:
        if cell.cell_type != "markdown":
            continue
        last = links(text(cell))
        for link in last:
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            if path and not (notebook.path.parent / path).exists():
                found.append(f"the link {link!r} leads nowhere")
            if not path and slug(anchor) not in anchors:
                found.append(f"the link {link!r} leads to no heading")
    for step in (-1, 1):
        beside = notebook.neighbour(step)
        if beside and beside not in last:
            found.append(f"the last cell has no link to {beside}")
    return found


@rule
def outputs_stay_here(notebook: Notebook) -> list[str]:
    """Nothing in an output asks the network for a script, a style or a picture, or tells where it was made."""
    found = []
    host = platform.node()
    for out in notebook.outputs:
        if "application/javascript" in out.get("data", {}):
            found.append("an output is a script")
        for page in notebook.pages(out):
            found += [f"an output asks the network for {address[:60]!r}" for address in page.remote]
        types = "text/plain", "text/html", "text/markdown"
        output_text = "\n".join(text(out.get("data", {}), mime) for mime in types)
        output_text = re.sub(r"base64,[\w+/=]+", "", output_text + text(out, "text"))
        leaks = [m[0] for m in [*LOCAL_PATH.finditer(output_text), *LOCAL_HOST.finditer(output_text)]]
        if len(host) > 3 and host in output_text:
            leaks.append(host)
        found += [f"an output tells a place on one machine: {leak!r}" for leak in leaks[:3]]
    return found


@rule
def code_stays_clean(notebook: Notebook) -> list[str]:
    """No installation or shell in a cell; ``head_mask`` passed only where it is shown to be a trap; seeds set."""
    found, seeded = [], False
    for cell in notebook.code:
        source = text(cell)
        magic = [line.strip() for line in source.splitlines() if re.match(r"\s*[%!]", line)]
        found += [f"a magic or shell line: {line!r}" for line in magic]
        tree = notebook.tree(cell)
        if tree is None:
            found.append(f"not Python: {source.splitlines()[0]!r}")
            continue
        words = {k.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for k in node.keywords}
        words |= {
            k.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
            for k in node.keys
            if isinstance(k, ast.Constant)
        }
        if words & MASKS and "trap" not in cell.metadata.get("tags", []):
            found.append(f"{sorted(words & MASKS)} passed in a cell without the tag 'trap': use ablate")
        seeded = seeded or bool(SEEDED.search(source))
        if RANDOM.search(source) and not seeded:
            found.append(f"random numbers before a seed is set: {RANDOM.search(source)[0]!r}")
    return found


@rule
def exercises(notebook: Notebook) -> list[str]:
    """Each exercise has a stub, a call of ``check`` and a solution to unfold, in this order."""
    parts = notebook.exercises()
    found = [] if parts else ["no exercise"]
    for part in parts:
        lacks = [name for name in ("stub", "check", "solution") if getattr(part, name) is None]
        found += [f"{part.title!r} has no {name}" for name in lacks]
        if not lacks and not part.stub < part.check < part.solution:
            found.append(f"{part.title!r}: first the stub, then the check, then the solution")
        if not re.search(r"about (\d+|one|two|three|five|ten) minutes?", part.header, re.I):
            found.append(f"{part.title!r} does not say 'about N minutes'")
        if not re.search(r"Difficulty [123] of 3", part.header):
            found.append(f"{part.title!r} does not say 'Difficulty N of 3'")
    return found


def catalogue_of(notebook: Notebook) -> dict | None:
    """Return the entries of a lesson's catalogue; None for a lesson that has none yet."""
    try:
        about = catalogue.lesson(notebook.path.name[:2])
    except KeyError:
        return None
    return {name: entry for name, entry in about.items() if isinstance(entry, dict) and name != "hints"}


@rule
def numbers_are_measured(notebook: Notebook) -> list[str]:
    """In a lesson with a catalogue, every entry is used and known, and prose leaves shares and decimals to it."""
    entries = catalogue_of(notebook)
    if entries is None:
        return []
    number = notebook.path.name[:2]
    code = "\n".join(text(cell) for cell in notebook.code)
    for appendix in notebook.path.parent.glob("more/*.ipynb"):  # what an appendix takes over keeps its name
        code += "".join(text(cell) for cell in nbformat.read(appendix, 4).cells if cell.cell_type == "code")
    used = set(re.findall(rf'(?<!check\()"{number}\.(\w+)"', code))
    found = [f"the entry {name!r} is not used" for name in sorted(entries.keys() - used)]
    found += [f"there is no entry {name!r}" for name in sorted(used - entries.keys())]
    prose_text = re.sub(r"^## References.*", "", notebook.markdown, flags=re.S | re.M)
    shares = r"(?<![\w.])0?\.\d\d+\b|\b(?!95%)\d+(?:\.\d+)?%"  # a bar of 0.9 and "a 95 % interval" are no results
    bare = re.findall(shares, prose(prose_text.replace(" %", "%")))
    return found + [f"{n!r} stands in prose: measure it and put it into a caption" for n in bare]


@rule
def code_fits(notebook: Notebook) -> list[str]:
    """In a lesson with a catalogue, code is at most 90 columns wide, so that it does not scroll."""
    if catalogue_of(notebook) is None:
        return []
    lines = [line for cell in notebook.code for line in text(cell).splitlines()]
    return [f"{len(line)} columns of code: {line.strip()[:40]!r}" for line in lines if len(line) > COLUMNS]


@rule
def voice(notebook: Notebook) -> list[str]:
    """No word that tells the reader how easy it is."""
    prose_text = prose(notebook.markdown).lower()
    return [f"{word!r} is in the text" for word in BANNED_WORDS if re.search(rf"\b{word}\b", prose_text)]
