"""The report's page, opened from disk in a real browser without a network: light, dark, narrow and on paper."""

import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from course.test_report import ENGLISH, TOKENIZER, built

import headtools as ht

pytestmark = pytest.mark.full

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1400, "height": 1000}
CHANGING = ["color-contrast", "scrollable-region-focusable"]  # what colours and a narrow window can break
# Words in drawings, which axe-core passes over: each with the contrast between it and what is drawn under it.
WORDS_OF_DRAWINGS = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const over = (above, below) => {
        const share = above[3] ?? 1;
        return [0, 1, 2].map((i) => above[i] * share + below[i] * (1 - share));
    };
    const light = (colour) => {
        const part = (c) => (c / 255 <= 0.04 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * part(colour[0]) + 0.7152 * part(colour[1]) + 0.0722 * part(colour[2]);
    };
    const paper = channels(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('svg text')].filter((text) => text.textContent.trim()).map((text) => {
        const box = text.getBoundingClientRect(), own = getComputedStyle(text);
        const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2)
            .filter((node) => ['rect', 'circle', 'path', 'polygon'].includes(node.tagName)).map((node) => {
                const style = getComputedStyle(node);
                const colour = style.fill === 'none' ? [0, 0, 0, 0] : channels(style.fill);
                return [...colour.slice(0, 3), (colour[3] ?? 1) * style.fillOpacity * style.opacity];
            }).reverse().reduce((below, above) => over(above, below), paper);
        const ink = over(channels(own.fill), under);
        const [low, high] = [light(ink), light(under)].sort((a, b) => a - b);
        return [text.textContent, (high + 0.05) / (low + 0.05), box.width > 0];
    });
}"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """One with all sections, of a language model, and one without roles, of another kind of model."""
    folder = tmp_path_factory.mktemp("reports")
    ids = torch.randint(5, 60, (4, 8), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": ids + i, "attention_mask": torch.ones_like(ids), "labels": ids} for i in range(2)]
    options = {"orders": 1, "progress": False}
    whole = ht.report(built("GPT-2"), ENGLISH[:8], TOKENIZER, path=folder / "whole.html", **options)
    part = ht.report(built("T5"), batches, path=folder / "part.html", **options)
    assert (whole.missing, set(part.missing)) == ({}, {"roles"})
    return {"whole": whole, "part": part}


@pytest.fixture
def at(reports, page):
    """Open one of the reports; what was noted of the page before is forgotten."""

    def open_report(name, scheme="light", size=DESK):
        page.emulate_media(color_scheme=scheme, media="screen")
        page.set_viewport_size(size)
        for noted in (page.failed, page.errors, page.strangers):
            noted.clear()
        page.goto(reports[name].path.as_uri())
        return page

    return open_report


def shut_out(page, rules=None):
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": rules} if rules else {})
    return [
        f"{found['id']}: {found['nodes'][0]['html'][:150]}: {found['nodes'][0]['failureSummary'][:200]}"
        for found in Axe().run(page, context={"exclude": [["svg > *"]]}, options=options).response["violations"]
    ]


def faint(page):
    """The words in drawings whose contrast is below 4.5, or that are not drawn at all."""
    page.set_viewport_size(DESK | {"height": page.evaluate("document.documentElement.scrollHeight")})
    words = page.evaluate(WORDS_OF_DRAWINGS)
    assert len(words) > 20
    return [f"{word!r} in a drawing has contrast {by:.1f}" for word, by, drawn in words if by < 4.5 or not drawn]


@pytest.mark.parametrize("name", ["whole", "part"])
def test_light_and_dark_wide_and_narrow(at, reports, name):
    page = at(name)
    assert page.strangers == [reports[name].path.as_uri()], "a request for something other than the page"
    wrong = page.errors + page.failed + shut_out(page) + faint(page)
    page = at(name, "dark", PHONE)
    wrong += shut_out(page, CHANGING)
    if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
        wrong.append("wider than a phone")
    wrong += faint(page)
    assert not wrong, "\n".join(wrong)


def bare(text):
    return re.sub(r"\s", "", text)


def test_on_paper_nothing_is_lost(at):
    """The PDF's outline holds all headings, those of the collapsed section too; each drawing is there by its name."""
    page = at("part")
    headings = page.locator("h1, h2, h3").all_text_contents()
    collapsed = page.locator("details:not([open]) h3").all_text_contents()
    assert collapsed == ["What the heads attend to"]
    names = page.locator("svg[role=img]").evaluate_all("drawings => drawings.map((d) => d.getAttribute('aria-label'))")
    assert len(names) == page.locator("svg").count() > 10
    page.emulate_media(media="print")
    pdf = page.pdf(tagged=True, outline=True, prefer_css_page_size=True)
    outline = {bare(read_text(title)) for title in re.findall(rb"/Title\s*(\((?:\\.|[^\\)])*\)|<[0-9A-F]+>)", pdf)}
    assert {bare(heading) for heading in headings} <= outline
    alt_texts = [bare(read_text(alt)) for alt in re.findall(rb"/Alt\s*(\((?:\\.|[^\\)])*\)|<[0-9A-F]+>)", pdf)]
    assert sorted(alt_texts) == sorted(map(bare, names))


def read_text(written):
    """A string of a PDF, which is in brackets or in hexadecimal."""
    if written.startswith(b"<"):
        data = bytes.fromhex(written[1:-1].decode())
    else:
        data = re.sub(rb"\\(.)", rb"\1", written[1:-1])
    return data.decode("utf-16") if data.startswith(b"\xfe\xff") else data.decode("latin-1")


def test_a_collapsed_section_opens_by_key_and_by_link(at):
    page = at("part")
    section = page.locator("details section").first
    assert not section.is_visible()
    page.focus("summary")
    page.keyboard.press("Enter")
    assert section.is_visible()
    page = at("part")
    page.click(".findings a >> nth=0")
    section.wait_for(state="visible")
