"""The report's page, opened from disk in a real browser without a network: light, dark, narrow and on paper."""

import json
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
    ht.prune(smaller := built("GPT-2"), {("decoder", 1): [0]})
    pruned = ht.report(smaller, ENGLISH[:8], TOKENIZER, path=folder / "pruned.html", title="Without a head", **options)
    assert (whole.missing, set(part.missing), pruned.missing) == ({}, {"roles", "words"}, {})
    return {"whole": whole, "part": part, "pruned": pruned}


@pytest.fixture
def at(reports, page):
    """Open one of the reports; what was noted of the page before is forgotten."""

    def open_report(name, scheme="light", size=DESK, head=""):
        page.emulate_media(color_scheme=scheme, media="screen")
        page.set_viewport_size(size)
        for noted in (page.failed, page.errors, page.strangers):
            noted.clear()
        page.goto("about:blank")  # else another head of the same page is no new page
        page.goto(reports[name].path.as_uri() + head)
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
    assert set(page.strangers) <= {"about:blank", reports[name].path.as_uri()}, (
        "a request for something other than the page"
    )
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
    assert collapsed == ["What the heads attend to", "Words that heads read and write"]
    names = page.locator("svg[role=img]").evaluate_all("drawings => drawings.map((d) => d.getAttribute('aria-label'))")
    assert len(names) == 5, "a map for each of four examples, and the curve"
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
    page.focus("summary >> nth=-1")
    page.keyboard.press("Enter")
    assert section.is_visible()
    page = at("part")
    page.click(".findings a >> nth=0")
    section.wait_for(state="visible")


# --- the browser of heads ---------------------------------------------------------------------------------------------


def opened(page):
    return page.locator("#head-title").text_content()


def opens(page, name):
    """Wait for the page of a head, which opens after the address has changed."""
    page.locator("#head-title", has_text=name).wait_for(timeout=5000)


def test_a_head_opens_by_address_press_and_key(at, reports):
    page = at("whole", head="#decoder-1.2")
    opens(page, "decoder 1.2")
    code = page.locator("#head code").text_content()
    assert code == 'ht.ablate(model, {("decoder", 1): [2]})'
    page.locator('[data-head="decoder 0.3"] circle, [data-head="decoder 0.3"] rect').last.click()
    opens(page, "decoder 0.3")
    assert page.url.endswith("#decoder-0.3")
    page.focus("#plot")
    page.keyboard.press("ArrowRight")  # layers go across
    opens(page, "decoder 1.3")
    page.keyboard.press("ArrowUp")
    opens(page, "decoder 1.2")
    page.keyboard.press("ArrowUp")
    opens(page, "decoder 1.1")
    page.go_back()  # to the page before the plot was entered, and not head by head
    opens(page, "decoder 1.2")
    page.locator("#table a", has_text="decoder 0.1").click()
    opens(page, "decoder 0.1")
    assert page.locator("#maps figure").count() == 4, "as many as there are sentences"
    assert not page.errors


def test_a_head_s_page_shows_the_numbers_of_the_report(at, reports):
    page = at("whole", head="#decoder-1.2")
    head = next(head for head in reports["whole"].heads["heads"] if head["name"] == "decoder 1.2")
    rows = page.locator("#head table").first.locator("tbody tr").all()
    shown = {row.locator("th").text_content(): row.locator("td").first.text_content() for row in rows}
    assert set(shown) == set(head["scores"])
    for name, text in shown.items():
        assert float(text) == pytest.approx(head["scores"][name][0], rel=0.02), name
    token = page.locator("#maps svg").first.locator("text").first.text_content()
    assert token == reports["whole"].heads["texts"][head["examples"][0]["example"]]["input_ids"][0]


def test_axes_colours_and_the_table_s_order(at, reports):
    page = at("whole")
    before = page.locator("#plot").inner_html()
    page.select_option("#up", "entropy (nats)")
    assert page.locator("#plot").inner_html() != before
    assert "entropy of the row" in page.locator("#plot-says").text_content()
    page.select_option("#across", "induction")
    page.select_option("#colour", "importance")
    assert page.locator("#plot .point").count() == 8
    page.click('[data-sort="entropy (nats)"]')
    column = [name.text_content() for name in page.locator("#table thead th").all()].index("entropy (nats)")
    values = [float(row.locator("th, td").nth(column).text_content()) for row in page.locator("#table tbody tr").all()]
    assert values == sorted(values, reverse=True)
    page.click('[data-sort="entropy (nats)"]')
    assert page.locator('th[aria-sort="ascending"]').text_content() == "entropy (nats)"
    page.click('[data-show="first token"]')
    assert page.input_value("#up") == "first token"
    assert not page.errors


def test_another_report_beside_this_one(at, reports):
    page = at("whole", head="#decoder-1.2")
    page.set_input_files("#other", reports["pruned"].path)
    page.locator("#which").wait_for(state="visible")
    assert page.locator("#other-says").text_content().startswith("7 heads are in both reports. They were measured on")
    assert page.locator("#plot .other").count() == 7
    page.check('#which input[value="1"]')
    assert opened(page) == "decoder 1.1", "the same head by the number that it has now"
    assert "Before pruning it was decoder 1.2." in page.locator("#head").text_content()
    assert page.locator("#table tbody tr").count() == 7
    page.set_input_files("#other", {"name": "notes.html", "mimeType": "text/html", "buffer": b"<p>no report</p>"})
    page.locator("#other-says", has_text="notes.html is not a headtools report").wait_for()
    assert not page.errors


def test_words_of_the_data_are_no_markup(page, tmp_path):
    """A tokenizer's hostile words in a map, in the table of words and in another report's title."""
    bad = "<img src=x onerror=window.broken=1>"
    report = ht.report(built("GPT-2"), ENGLISH[:8], TOKENIZER, orders=1, progress=False, title=bad)
    data = json.loads(json.dumps(report.heads))
    data["texts"] = [{"input_ids": [bad] * len(text["input_ids"])} for text in data["texts"]]
    for head in data["heads"]:
        head["words"]["reads +"][0] = [bad]
    path = report.save(tmp_path / "bad.html")
    (tmp_path / "other.json").write_text(json.dumps(data))
    page.goto(path.as_uri())
    page.set_input_files("#other", tmp_path / "other.json")
    page.locator("#which").wait_for(state="visible")
    page.check('#which input[value="1"]')
    assert bad in page.locator("#head").text_content()
    assert page.locator("img").count() == 0
    assert page.evaluate("window.broken") is None
