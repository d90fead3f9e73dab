"""What the documents say is so: commands exist, examples run, links lead somewhere, numbers are right."""

import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from course.test_report import TOKENIZER, built
from lesson_parts import FENCE, Notebook, headings, lessons, links, slug
from measure_notebooks import table

import headtools as ht
from headtools.course import catalogue
from headtools.organism import snapshots

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "LICENSE-text.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")


def read(root: Path, name: str) -> str:
    return (root / name).read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def home(root: Path) -> str:
    return tomllib.loads(read(root, "pyproject.toml"))["project"]["urls"]["Repository"]


# --- commands and examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS[:2])
def test_make_commands_exist(root: Path, name: str):
    text = read(root, name)
    targets = set(re.findall(r"^([a-z-]+):", read(root, "Makefile"), re.M))
    named = set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(text, "sh")), re.M))
    named |= set(re.findall(r"`make ([a-z-]+)", text))
    assert named
    assert named <= targets


def test_the_readme_is_short(root: Path):
    """Under 700 words, the table of lessons included, code and addresses not."""
    text = re.sub(r"\]\([^)]*\)", "]", FENCE.sub("", read(root, "README.md")))
    assert len(re.findall(r"\w[\w'’.-]*", text)) < 700


def test_conda_commands_fit_the_environment(root: Path):
    block_of_conda = next(block for block in blocks(read(root, "notebooks/installing.md"), "sh") if "conda" in block)
    name = yaml.safe_load(read(root, "environment.yml"))["name"]
    assert f"conda env create -f environment.yml\nconda activate {name}\n" in block_of_conda
    lesson = Path(re.search(r"python tools/my_lessons.py\njupyter lab my-lessons/(\S+)", block_of_conda)[1])
    assert (root / "notebooks" / lesson).exists()


def test_the_readme_examples_run(root: Path, capsys: pytest.CaptureFixture):
    first, second, third = blocks(read(root, "README.md"), "python")
    names: dict = {}
    exec(compile(first, "README.md", "exec"), names)
    assert re.search(r"^\d+ maps; loss \d+\.\d{3}, without two heads \d+\.\d{3}$", capsys.readouterr().out.strip())
    assert names["plain"] != names["without"]
    exec(compile(second, "README.md", "exec"), names)
    assert "# The organism" in capsys.readouterr().out
    assert names["roles"].passes.any()
    exec(compile(third, "README.md", "exec"), names)
    assert capsys.readouterr().out.count("English") == 1


def test_the_cut_of_the_cheat_sheet_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (example,) = [code for code in blocks(read(root, "notebooks/cheat_sheet.md"), "python") if "cut_cost" in code]
    assert sum(map(bool, example.splitlines())) <= 25, "twenty-five lines of a user's"
    model = built("Llama")  # two layers, in each of which four heads share two groups of keys and values
    before = ht.model_size(model)
    monkeypatch.setattr(ht, "load", lambda name: (model, TOKENIZER))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(
        compile(example.replace("nlargest(30", "nlargest(2").replace("// 5]", "// 4]"), "cheat_sheet.md", "exec"), names
    )
    printed = capsys.readouterr().out
    assert [printed.count(text) for text in ("sentences", "documents", "code", "repeated tokens")] == [2, 2, 2, 2]
    assert 1 <= len(names["spared"]) <= 2
    assert len(names["groups"]) == 1
    assert not set(names["groups"]) & names["spared"]
    saved = ht.model_size(model)
    assert (saved["heads"], saved["kv_heads"]) == (before["heads"] - 2, before["kv_heads"] - 1)
    assert all(saved[name] < before[name] for name in ("parameters", "weight_bytes", "cache_bytes"))
    assert (tmp_path / "smaller" / "checksums.json").exists()


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_resolve(root: Path, name: str):
    text = read(root, name)
    anchors = {slug(title) for _, title in headings(text)}
    for link in links(text):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            assert not path or (root / path).exists(), link
            assert path or slug(anchor) in anchors, link


def test_every_address_of_the_repository_is_its_home(root: Path):
    owner_and_name = home(root).removeprefix("https://github.com/")
    text = unquote(read(root, "README.md") + read(root, "notebooks/installing.md"))
    hosts = r"(?:github\.com|mybinder\.org/v2/gh|colab\.research\.google\.com/github)"
    addresses = re.findall(hosts + r"/([\w.-]+/[\w.-]+)", text)
    addresses = [address for address in addresses if address not in ("huggingface/transformers", "jessevig/bertviz")]
    assert len(addresses) >= 6
    assert set(addresses) == {owner_and_name}
    assert yaml.safe_load(read(root, "CITATION.cff"))["repository-code"] == home(root)
    assert home(root) == snapshots.REPOSITORY


def test_badges_and_links_open_a_file_that_exists(root: Path):
    text = unquote(read(root, "README.md") + read(root, "notebooks/installing.md"))
    opened = re.findall(r"(?:notebooks|my-lessons)(/\w+\.ipynb)", text)
    for route in ("mybinder.org/v2/gh", "colab.research.google.com/github", "user-redirect/git-pull"):
        assert re.search(rf"{re.escape(route)}\S+(?:notebooks|my-lessons)/\w+\.ipynb", text), route
    assert all((root / f"notebooks{path}").exists() for path in opened)
    assert "branch=main" in text


def test_the_picture_and_the_lessons_lead_to_the_site(root: Path):
    urls = tomllib.loads(read(root, "pyproject.toml"))["project"]["urls"]
    site, text = urls["Homepage"], read(root, "README.md")
    owner, name = home(root).split("/")[-2:]
    assert site == f"https://{owner}.github.io/{name}/"  # where site.yml deploys to
    assert yaml.safe_load(read(root, "CITATION.cff"))["url"] == site
    assert re.search(rf"\[!\[[^\]]+\]\(\S+live\.gif\)\]\({site}live/\)", text)
    pages = set(re.findall(rf"{site}(\w*)", text))
    assert pages == {"", "live", *(path.stem for path in lessons(root / "notebooks"))}


# --- bibliography -----------------------------------------------------------------------------------------------------

NOT_A_SOURCE = {"Banino"}  # named in a claim of others whose source does not exist


def entries(page: str) -> list[str]:
    return re.findall(r"^- .*?(?=^- |^#|\Z)", page, re.M | re.S)


def bare(prose_text: str) -> str:
    return " ".join(re.findall(r"\w+", prose_text.lower()))


# Bee (2001), Bee et al. (2001, table 2), (Bee and Cee 2001), Bee, Cee and Dee, 2001
CITED = re.compile(r"\b([A-Z][\w-]+)(?: et al\.?|(?:, [A-Z][\w-]+)* and [A-Z][\w-]+)?,? \(?((?:19|20)\d\d)\b")


def missing(lesson: str, page: str, more: str = "") -> list[str]:
    """What a lesson refers to (first author, title) or cites (name, year), it or its catalogue, and the page lacks."""
    known = [bare(entry) for entry in entries(page)]
    text, _, references = lesson.partition("\n## References\n")
    found = []
    for entry in entries(references.split("\n---\n")[0]):
        who = bare(entry[1:].split(" (")[0].split(",")[0].split(" et al")[0].split(" and ")[0]).split()[-1]
        title = bare(re.search(r"\[([^\]]*)\]\(|\*([^*]*)\*", entry)[0].split("](")[0].split(":")[0])
        if not any(title in line and who in line for line in known):
            found.append(entry.strip())
    cited = {(name, year) for name, year in CITED.findall(text + more) if name not in NOT_A_SOURCE}
    words = [set(line.split()) for line in known]
    return found + sorted(f"{n} {year}" for n, year in cited if not any({*bare(n).split(), year} <= w for w in words))


@pytest.mark.parametrize("path", lessons(Path(__file__).resolve().parents[1] / "notebooks"), ids=lambda path: path.stem)
def test_the_bibliography_holds_what_a_lesson_cites(root: Path, path: Path):
    claims = read(root, f"headtools/course/catalogue/{path.name[:2]}.toml")
    lacks = missing(Notebook.read(path).markdown, read(root, "notebooks/bibliography.md"), claims)
    assert lacks == [], "add these to notebooks/bibliography.md"


def test_a_reference_that_the_bibliography_lacks_is_found():
    page = "- A. Bee (2001). *On Heads: a Study.* ACL.\n  [arXiv:1](https://arxiv.org/abs/1)\n"
    prose_text = "Cee (2002) and Bee et al. (2001), Bee (1999) or (Dee, Cee and Bee 2003; Bee and Eff, 2004).\n"
    prose_text += "\n## References\n\n"
    lacks = ["Bee 1999", "Bee 2004", "Cee 2002", "Dee 2003"]
    assert missing(f"{prose_text}- A. Bee (2001). [On Heads](https://arxiv.org/abs/1).\n\n---\n\n- x", page) == lacks
    assert missing("Bee (2001)", page, 'claim = "Eff et al. 2005 say"') == ["Eff 2005"]
    other = "- A. Bee (2001). [On Tails](https://arxiv.org/abs/2)."
    assert missing(f"## Nothing\n\n## References\n\n{other}", page) == [other]


# --- where each claim is treated --------------------------------------------------------------------------------------

TREATED = "Where each claim is treated"
SHOWS = {  # what a section must have, to stand in a column
    "derived": lambda prose, code, pictures: "$$" in prose,
    "built by hand": lambda prose, code, pictures: re.search(r"\bdef |\bclass | @ |einsum\(", prose + code),
    "measured": lambda prose, code, pictures: re.search(r"\bht\.(figure|measured)\(", code),
    "drawn": lambda prose, code, pictures: pictures,
}


def anchor(title: str) -> str:
    """A heading's address on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@cache
def sections(path: Path) -> dict[str, tuple[str, str, str, bool]]:
    """The sections of a lesson by address: title, prose, code, and whether there is a picture."""
    found: dict[str, tuple[str, str, str, bool]] = {}
    title = ""
    for cell in Notebook.read(path).nb.cells:
        if cell.cell_type == "markdown":
            for part in re.split(r"^(?=#{2,3} )", cell.source, flags=re.M):
                title = part.split("\n")[0].lstrip("# ") if part.startswith("##") else title
                _, prose, code, pictures = found.get(anchor(title), (title, "", "", False))
                found[anchor(title)] = title, prose + part, code, pictures
        else:
            _, prose, code, pictures = found[anchor(title)]
            drawn = any("image/png" in str(output) for output in cell.outputs)
            found[anchor(title)] = title, prose, code + cell.source + "\n", pictures or drawn
    return found


def claims_table(page: str) -> list[dict[str, str]]:
    lines = page.split(f"## {TREATED}\n")[1].split("\n## ")[0].splitlines()
    head, _, *rest = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [dict(zip(head, row, strict=True)) for row in rest]


def not_there(folder: Path, row: dict[str, str]) -> list[str]:
    """The links of a row that lead to no section, name another one, or lead where the column's promise is not kept."""
    off = []
    for column, shows in SHOWS.items():
        pairs = re.findall(r"\[([^\]]*)\]\(([^)#]*)#([^)]*)\)", row[column])
        off += [] if pairs or row[column] == "none" else [f"{column}: {row[column]!r} has no link"]
        for words, name, address in pairs:
            title, *shown = sections(folder / name).get(address, ("",)) if (folder / name).exists() else ("",)
            if words != f"{Path(name).name[:2]} {title}":
                off.append(f"{column}: no section {words!r} at {name}#{address}")
            elif not shows(*shown):
                off.append(f"{column}: nothing of the kind in {words!r}")
    return off


def test_timetables_add_up_the_minutes_of_the_lessons(root: Path):
    """Six, ten and thirteen sessions: each has the minutes that the boxes of its lessons say, and no lesson is left."""
    rows = {"lessons": [], "said": [], "added": []}
    minutes = {}
    for path in lessons(root / "notebooks"):
        (told,) = re.findall(r"about (\d+) minutes for reading", path.read_text("utf-8"))
        minutes[path.name[:2]] = int(told)
    table = re.findall(r"^\| \d+ \| (\d\d(?:, \d\d)*) \| (\d+) \| ", read(root, "notebooks/teaching.md"), re.M)
    for names, told in table:
        rows["lessons"] += names.split(", ")
        rows["said"].append(int(told))
        rows["added"].append(sum(minutes[name] for name in names.split(", ")))
    assert len(table) == 6 + 10 + 13
    assert sorted(rows["lessons"]) == sorted([*minutes] * 3)
    assert rows["said"] == rows["added"]


def test_each_story_has_one_place_and_each_lesson_tells_one(root: Path):
    part = read(root, "notebooks/teaching.md").split("## Where each story is told")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| \[(\d\d) (.+)\]\(([^)#]*)#(.*)\) \|$", part, re.M)
    assert len(rows) == part.count("\n| ") - 1  # the head of the table is no story
    assert len({(name, address) for *_, name, address in rows}) == len({story for story, *_ in rows}) == len(rows)
    for _, number, title, name, address in rows:
        assert name.removeprefix("more/").startswith(number)
        assert sections(root / "notebooks" / name)[address][0] == title
    assert {number for _, number, *_ in rows} == {f"{n:02}" for n in range(13)}


def test_the_table_of_claims_leads_to_sections_that_keep_its_promise(root: Path):
    found = claims_table(read(root, "notebooks/teaching.md"))
    assert [line for row in found for line in not_there(root / "notebooks", row)] == []


def test_the_table_of_claims_has_every_claim_once_and_leads_to_a_lesson_that_weighs_it(root: Path):
    weighed: dict[str, set[str]] = {}
    for path in lessons(root / "notebooks"):
        for claim in catalogue.lesson(path.name[:2]).get("others", []):
            weighed.setdefault(claim["row"], set()).add(path.name[:2])
    listed = []
    for row in claims_table(read(root, "notebooks/teaching.md")):
        numbers = row["rows"].split(", ")
        listed += numbers
        linked = set(re.findall(r"\]\((?:more/)?(\d\d)_", " ".join(row.values())))
        assert [n for n in numbers if n in weighed and not weighed[n] & linked] == [], row["claim"]
    assert sorted(listed) == sorted(json.loads(read(root, "notebooks/ledger.json"))["rows"])


def test_a_link_of_the_table_that_rots_is_found(root: Path):
    row = {"claim": "x", "rows": "1", "derived": "none", "built by hand": "none", "measured": "none", "drawn": "none"}
    path = lessons(root / "notebooks")[6]
    real = f"[06 Two scores to watch]({path.name}#two-scores-to-watch)"
    assert not_there(path.parent, row | {"derived": real}) == []
    assert "nothing of the kind" in not_there(path.parent, row | {"drawn": real})[0]
    assert "no section" in not_there(path.parent, row | {"derived": real.replace("scores to", "scores for")})[0]
    assert "no section" in not_there(path.parent, row | {"derived": real.replace("#two", "#three")})[0]
    assert "no section" in not_there(path.parent, row | {"derived": real.replace("(06_", "(99_")})[0]
    assert "no link" in not_there(path.parent, row | {"measured": "lesson 06"})[0]


# --- versions and numbers ---------------------------------------------------------------------------------------------


def test_proven_versions_are_the_pinned_ones(root: Path):
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", read(root, "constraints.txt"), re.M))
    page = read(root, "notebooks/installing.md")
    versions = dict(re.findall(r"^\| (torch|transformers|JupyterLab) \| ([\d.]+) \|", page, re.M))
    assert {name.lower(): version for name, version in versions.items()} == {
        name: pinned[name] for name in ("torch", "transformers", "jupyterlab")
    }


def test_the_version_is_told_once(root: Path):
    import headtools

    version = tomllib.loads(read(root, "pyproject.toml"))["project"]["version"]
    assert headtools.__version__ == version
    assert str(yaml.safe_load(read(root, "CITATION.cff"))["version"]) == version


def test_the_table_of_lessons_is_what_was_measured(root: Path):
    text = read(root, "README.md")
    rows = re.findall(r"^\| \[(\d\d)\]\S+ \| (.*) \|$", text, re.M)
    assert [number for number, _ in rows] == [f"{n:02d}" for n in range(13)]
    measured = json.loads(read(root, "notebooks/measured.json"))["lessons"]
    assert set(measured) == {path.stem for path in lessons(root / "notebooks")}
    assert table(text, measured, root / "notebooks") == text, "run `make measure`"
    there = {path.name[:2] for path in lessons(root / "notebooks")}
    assert {number for number, rest in rows if "| planned | planned" not in rest} == there


@pytest.mark.parametrize("name", DOCUMENTS)
def test_voice(root: Path, name: str):
    text = FENCE.sub("", read(root, name)).lower()
    assert not re.search(r"\b(simply|obviously|as you can see)\b", text)


# --- automation -------------------------------------------------------------------------------------------------------


def test_the_measure_in_contributing_runs(root, tmp_path):
    """The block that newcomers copy: its doctest, and a shared layer, whose calls are averaged."""
    import doctest
    import types

    import torch
    from heads.zoo import zoo_model

    guide = read(root, "CONTRIBUTING.md").split("## Add a measure")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.S)
    module = types.ModuleType("first_token")
    sys.modules["first_token"] = module
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    assert doctest.testmod(module).failed == 0
    model, batch = zoo_model("albert")
    calls = []
    with torch.no_grad(), ht.record(model, "maps", accumulate=lambda site, seen, _: calls.append(seen.maps[..., 0])):
        model(**batch)
    real = batch["attention_mask"].bool()
    expected = torch.stack([call.transpose(1, 2)[real].mean(0) for call in calls]).mean(0)
    assert torch.allclose(module.first_token(model, batch).flat().double(), expected.double(), atol=1e-6)


# --- what a project on GitHub needs -----------------------------------------------------------------------------------


def test_issue_forms_are_what_github_reads(root: Path, capsys: pytest.CaptureFixture):
    """Each has a name, a description and fields with an id and a label; the command for versions runs."""
    forms = [path for path in (root / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        assert form["name"]
        assert form["description"]
        assert all(field["id"] and field["attributes"]["label"] for field in form["body"])
    text = (root / ".github/ISSUE_TEMPLATE/model_not_understood.yml").read_text("utf-8")
    command = re.search(r'python -c "(.+)"`', text)[1]
    exec(command, {})
    assert capsys.readouterr().out.split()[0] == ht.__version__


def test_the_paper_cites_what_its_bibliography_has(root: Path):
    cited = set(re.findall(r"@([a-z]+\d{4})", read(root, "paper.md")))
    listed = set(re.findall(r"^@\w+\{(\w+),", read(root, "paper.bib"), re.M))
    assert cited == listed


def test_the_changelog_has_a_section_for_the_version(root: Path):
    version = tomllib.loads(read(root, "pyproject.toml"))["project"]["version"]
    released = yaml.safe_load(read(root, "CITATION.cff"))["date-released"]
    first = re.search(r"^## .*", read(root, "CHANGELOG.md"), re.M)[0]
    assert first == f"## {version}, {released}"
