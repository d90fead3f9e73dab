"""The site, opened from disk in a real browser without a network: every page, light and dark, wide and narrow."""

import re

import pytest

from headtools.course.claims import VERDICTS

pytestmark = pytest.mark.full

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
MATHS = "!window.MathJax?.startup?.promise || window.MathJax.startup.promise.then(() => true)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
WITH_CODE = "reference/organism.html"  # where highlighted code is looked at: its colours are the same on all pages
CHANGING = ["color-contrast", "scrollable-region-focusable"]  # what colours and a narrow window can break
SOME_MODULE = "_modules/headtools/heads/ablate.html"  # of the many pages of source code, which are all made alike


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    pytest.importorskip("myst_nb")
    import make_site

    out = tmp_path_factory.mktemp("site") / "html"
    assert make_site.build(out) == 0  # warnings are errors
    return out


@pytest.fixture(scope="module")
def at(site, page):
    """Open a page of the site, by its name and what follows it; what was noted of the page before is forgotten."""
    page.on("requestfailed", lambda request: page.failed.append(request.url))

    def open_page(name, scheme="light", size=DESK):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size(size)
        page.goto("about:blank")
        for noted in (page.failed, page.errors, page.strangers):
            noted.clear()
        page.goto(f"{site.as_uri()}/{name}", wait_until="load")
        page.wait_for_function(MATHS)
        return page

    return open_page


def pages(site):
    moved = 'http-equiv="refresh"'  # pages that only lead to another one
    names = sorted(str(p.relative_to(site)) for p in site.rglob("*.html") if moved not in p.read_text("utf-8")[:300])
    return [name for name in names if not name.startswith("_modules/") or name == SOME_MODULE]


def faults(page):
    """What went wrong, what was asked of a network, which pictures are not drawn or not described."""
    page.evaluate("for (const image of document.images) image.loading = 'eager'")
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    images = {
        "no alt": "[...document.images].filter((i) => !i.hasAttribute('alt')).map((i) => i.src.slice(0, 60))",
        "not drawn": "[...document.images].filter((i) => !i.naturalWidth).map((i) => i.src.slice(0, 60))",
    }
    far = [url for url in page.strangers if not url.startswith("file:")]
    mute = [f"{what}: {src}" for what, ask in images.items() for src in page.evaluate(ask)]
    return page.failed + page.errors + far + mute


def shut_out(page, code=False, rules=None):
    """What axe-core finds: each rule with the first node that breaks it. Highlighted code has thousands of nodes."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"preload": False, "resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
    context = {"exclude": [] if code else [[".highlight"]]}
    return [
        f"{found['id']}: {found['nodes'][0]['html'][:150]}: {found['nodes'][0]['failureSummary'][:200]}"
        for found in Axe().run(page, context=context, options=options).response["violations"]
    ]


def wide(page):
    """The nodes that make the page wider than its window, the innermost ones."""
    return page.evaluate(
        """() => {
            const most = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= most) return [];
            const right = (node) => node.getBoundingClientRect().right;
            const out = [...document.body.querySelectorAll('*')].filter((node) => right(node) > most + 1);
            return out.filter((n) => ![...n.children].some((child) => out.includes(child))).slice(0, 3)
                .map((n) => `wider than the window: ${n.outerHTML.slice(0, 120)}`);
        }"""
    )


def unsound(names, at):
    """What is wrong with these pages, on a desk and on a phone."""
    wrong = []
    for name in names:
        page = at(name)
        found = faults(page) + wide(page)
        page.set_viewport_size(PHONE)
        found += wide(page)
        wrong += [f"{name}: {what}" for what in found]
    return wrong


def test_every_fourth_page(site, at):
    names = pages(site)
    assert len(names) >= 30
    assert not unsound(names[::4], at)


@pytest.mark.weekly  # minutes more, and pages of a kind are made alike
def test_every_page(site, at):
    assert not unsound(pages(site), at)


def shuts_out(names, at):
    """What axe-core finds on these pages, light on a desk and dark on a phone."""
    wrong = []
    for name in names:
        page, code = at(name), name == WITH_CODE
        found = shut_out(page, code)
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        page.set_viewport_size(PHONE)
        wrong += [f"{name}: {what}" for what in found + shut_out(page, code, rules=CHANGING)]
    return wrong


def test_a_page_of_each_kind_shuts_no_reader_out(site, at):
    lessons = ["more/03_cross_attention.html", "handouts/05.html"]
    others = ["index.html", "claims.html", "cheat_sheet.html", WITH_CODE, SOME_MODULE]
    assert set(lessons + others) <= set(pages(site))
    assert not shuts_out(lessons + others, at)


@pytest.mark.weekly  # minutes
def test_every_page_shuts_no_reader_out(site, at):
    assert not shuts_out(pages(site), at)


def test_a_lesson_has_its_doors_and_its_box(site, at):
    for name in ("01_what_does_a_head_compute", "more/03_cross_attention"):
        doors = at(f"{name}.html").locator(".doors a")
        assert doors.all_inner_texts() == ["Run it on Binder", "Open in Colab", "Download the notebook"]
        assert doors.last.evaluate("link => link.hasAttribute('download')")
        assert (site / name).parent.joinpath(doors.last.get_attribute("href")).is_file()
    page = at("01_what_does_a_head_compute.html")
    assert page.locator("h1 + p + blockquote").evaluate("box => getComputedStyle(box).borderLeftWidth") == "6px"
    frame = "getComputedStyle(document.querySelector('.headtools-view iframe')).filter"
    assert at("more/02_who_reads_what_another_head_wrote.html").evaluate(frame) == "none"
    assert at("more/02_who_reads_what_another_head_wrote.html", "dark").evaluate(frame).startswith("invert")


def test_a_handout_prints_on_one_page(site, at):
    names = sorted(path.name for path in (site / "handouts").glob("[0-9]*.html"))
    assert len(names) == 13
    for name in names:
        printed = at(f"handouts/{name}").pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1, name


def test_mathematics_is_drawn(at):
    at("cheat_sheet.html").wait_for_selector("mjx-container svg, mjx-container mjx-math", state="attached")


def test_search_finds_a_word_of_a_lesson(at):
    page = at("search.html?q=induction")
    page.wait_for_selector("#search-results li a")
    assert any("specialise" in text for text in page.locator("#search-results li a").all_inner_texts())


def test_search_finds_claims_with_their_verdicts(site, at):
    page = at("search.html?q=effective%20ranks")
    found = page.locator("#claims-found li:visible")
    assert 1 <= found.count() <= 5
    assert all(re.search(r"effective.*rank|rank.*effective", text, re.S | re.I) for text in texts(page))
    assert found.first.locator("span").inner_text().split()[-1] in VERDICTS
    assert not faults(page) + shut_out(page)
    page = at("search.html?q=ranks")
    first = found.first.locator("a").inner_text()
    many = int(re.search(r"All (\d+) claims", page.inner_text("#claims-all"))[1])
    page.click("#claims-all")  # the table shows the same ones
    page.wait_for_function("document.getElementById('shown')?.textContent")
    assert many == shown(page).count() > 5
    assert first in shown(page).first.inner_text()
    page = at("search.html?q=induction")
    page.locator("#claims-found li:visible a").first.click()
    page.wait_for_selector(":target")
    assert page.locator(":target").evaluate("node => node.closest('#claims') !== null")


def test_search_without_words_or_claims_shows_none(at):
    for asked in ("search.html", "search.html?q=", "search.html?q=sharded"):
        assert not at(asked).is_visible("#claims-found"), asked


def texts(page):
    """What the claims that the search shows are looked for in."""
    return page.locator("#claims-found li:visible").evaluate_all(
        "claims => claims.map((claim) => claim.textContent + claim.dataset.text)"
    )


def test_dark_and_light(at):
    for name in ("index.html", "claims.html", "live/index.html"):
        backgrounds = {at(name, scheme).evaluate(BACKGROUND) for scheme in ("light", "dark")}
        assert len(backgrounds) == 2, name


def test_nothing_moves_for_those_who_ask_for_less_motion(at):
    moving = """[...document.querySelectorAll('*')].map((node) => [node, getComputedStyle(node)])
        .filter(([, style]) => style.transitionDuration !== '0s' || style.animationName !== 'none')
        .map(([node]) => node.outerHTML.slice(0, 80)).slice(0, 5)"""
    for name in ("index.html", "live/index.html", "cheat_sheet.html"):
        assert at(name).evaluate(moving) == [], name


def test_colours_chosen_on_one_page_hold_on_the_others(at):
    page = at("index.html")
    page.click("#theme")
    dark = page.evaluate(BACKGROUND)
    for name in ("live/index.html", "index.html"):
        assert at(name).evaluate(BACKGROUND) == dark
    assert at("glossary.html").evaluate("document.body.dataset.theme") == "dark"
    page.evaluate("localStorage.clear()")


# ---- the first page --------------------------------------------------------------------------------------------------


def test_the_first_page_shows_a_still_and_wakes_when_touched(at):
    page = at("index.html")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    assert page.evaluate("globalThis.headtoolsLive.weights === undefined")
    assert page.locator("#hero .still").count() == 3
    page.click("[data-do=without] >> nth=0")
    page.wait_for_selector("#hero.alive")
    assert page.inner_text("#hero-verdict").endswith("with 1 head off")
    assert page.locator("#hero .wrong").count() >= 2
    assert page.locator("#hero [aria-pressed=false]").count() == 1
    page.click("[data-do=allOn]")
    assert page.inner_text("#hero-verdict").startswith("All right")
    assert not page.errors + page.failed


def test_a_press_on_the_still_is_not_lost(at):
    page = at("index.html")
    box = page.locator("#hero .grid.cross .still").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 1.5 / 8, box["y"] + box["height"] * 0.5 / 6)  # second head, first layer
    page.wait_for_selector("#hero.alive")
    assert page.get_attribute("#hero [aria-pressed=false]", "aria-label").startswith("Cross-attention 0.1, off")


def test_the_first_page_by_keys(at):
    page = at("index.html")
    page.focus("[data-do=random]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hero.alive")
    assert "24 heads off" in page.inner_text("#hero-verdict")
    page.click("[data-do=allOn]")
    page.focus("#hero [data-head][tabindex='0']")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert page.inner_text("#hero-verdict").endswith("with 1 head off")
    page.click("[data-do=another]")
    assert page.locator("#hero-words li").count() >= 3


def test_without_a_script(site, page):
    context = page.context.browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(f"{site.as_uri()}/index.html")
    assert still.locator("#hero .still").count() == 3
    assert not still.is_visible("#hero [data-do]")
    assert still.locator(".lesson").count() == 13
    still.goto(f"{site.as_uri()}/claims.html")
    assert not still.is_visible("#filters")
    assert still.locator("#claims tbody tr:visible").count() > 90
    context.close()


# ---- the claims ------------------------------------------------------------------------------------------------------


def shown(page):
    return page.locator("#claims tbody tr:visible")


def test_claims_are_filtered_by_keys_alone(at):
    page = at("claims.html")
    whole = shown(page).count()
    page.focus("#find")
    page.keyboard.type("effective rank")
    few = shown(page).count()
    assert 0 < few < whole
    assert page.inner_text("#shown") == f"{few} of {whole} claims"
    page.focus("[name=verdict][value=wrong]")
    page.keyboard.press("Space")
    assert "wrong" not in shown(page).evaluate_all("rows => rows.map((row) => row.dataset.verdict)")
    assert 0 < shown(page).count() < few
    page.reload()  # the address keeps what was chosen
    assert page.input_value("#find") == "effective rank"
    assert not page.is_checked("[name=verdict][value=wrong]")
    page.focus("#filters [type=reset]")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#claims tbody tr:not([hidden])').length > 90")
    assert shown(page).count() == whole


def test_claims_by_topic_and_source_and_none(at):
    page = at("claims.html")
    page.select_option("#topic", "Gates")
    page.select_option("#source", "E")
    assert set(shown(page).evaluate_all("rows => rows.map((row) => row.id.slice(0, 7))")) == {"claim-E"}
    page.fill("#find", "no such word")
    assert shown(page).count() == 0
    assert page.is_visible("#nothing")
    page.click("#nothing button")
    assert page.evaluate("document.activeElement.id") == "find"


def test_a_claim_has_an_address(at):
    page = at("claims.html#claim-2.26")
    assert page.evaluate("document.querySelector(':target').id") == "claim-2.26"
    page.locator("[id='claim-2.26'] summary").click()
    assert len(page.locator("[id='claim-2.26'] details p").first.inner_text()) > 40
