"""The live page, opened from disk in a real browser: its tour, its sentences, its keys, and readers of all kinds."""

import pytest

pytestmark = pytest.mark.full

WIDTHS = (390, 800, 1440, 3840)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    import make_live_page

    return make_live_page.build(tmp_path_factory.mktemp("live") / "page").as_uri()


@pytest.fixture
def live(page, address):
    """The page, ready, at 1440 x 900; at the end nothing has failed and nothing has asked for a network."""
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto("about:blank")
    for noted in (page.errors, page.failed, page.strangers):
        noted.clear()
    page.goto(address)
    page.wait_for_selector("html.alive")
    yield page
    assert not page.errors + page.failed
    assert not [url for url in page.strangers if not url.startswith("file:")]


def text(page, name: str) -> str:
    return page.inner_text(f"#{name}")


def course(page, path: str):
    return page.evaluate(f"headtoolsLive.course.{path}")


def press(page, head: int) -> None:
    page.click(f"[data-head='{head}']")


def test_it_begins_with_a_right_translation(live):
    assert text(live, "verdict").startswith("All right")
    words = [line.split("\n")[-1] for line in live.locator("#words li").all_inner_texts()]
    assert " ".join(words) == course(live, "sentences[headtoolsLive.course.first].target")
    assert live.locator("[data-head]").count() == len(course(live, "rolesOfHeads"))


def test_it_paints_before_it_loads_the_weights(live):
    painted, ready = live.evaluate(
        "[performance.getEntriesByName('first-contentful-paint')[0].startTime, headtoolsLive.times.ready]"
    )
    assert painted < ready
    assert painted < 3000  # a quarter of a second on a machine that does nothing else


def test_the_tour_by_hand(live):
    """Each step is done as a reader does it; wrong ways are not taken for right ones."""
    tour = course(live, "tour")
    passed = lambda: live.is_enabled("#tour-next") and text(live, "tour-status")  # noqa: E731
    other = next(i for i, roles in enumerate(course(live, "rolesOfHeads")) if "even" in roles)

    live.click("#start")
    press(live, other)
    assert not passed()
    assert "Try another" in text(live, "tour-status")
    press(live, tour["neighbour"]["heads"][0])
    assert passed()

    live.click("#tour-next")
    press(live, other)
    assert not passed()
    press(live, tour["neighbour"]["heads"][0])
    assert tour["neighbour"]["needs"][0] in passed()
    assert live.locator("#words .wrong").count() >= 2

    live.click("#tour-next")
    assert not passed()
    press(live, tour["relation"]["heads"][0])
    assert passed()

    live.click("#tour-next")
    for head in tour["name"]["heads"]:
        assert not passed()
        press(live, head)
    assert passed()

    live.click("#tour-next")
    assert "wrong" in text(live, "verdict")
    live.check(f"[name=ranking][value='{tour['half']['ranking']}']", force=True)
    assert passed()
    assert text(live, "verdict").startswith("All right")

    live.click("#tour-next")
    live.check("[name=view][value=inside]", force=True)
    assert not passed()
    live.select_option("#inside-query", str(tour["referent"]["words"][0]))
    assert "%" in passed()
    live.click("#tour-next")
    assert live.is_hidden("#tour")


def test_the_tour_shows_each_step_on_request(live):
    live.click("#start")
    for _ in range(6):
        assert live.is_disabled("#tour-next")
        live.click("#tour-show")
        assert live.is_enabled("#tour-next")
        live.click("#tour-next")
    assert live.is_hidden("#tour")


def test_keys_alone(live):
    head = course(live, "tour.neighbour.heads[0]")
    live.focus("[data-head][tabindex='0']")
    heads = live.evaluate("[...document.querySelectorAll('.grid.encoder [data-head]')].map(b => +b.dataset.head)")
    wide = live.evaluate("document.querySelector('.grid.encoder .row').querySelectorAll('button').length")
    place = heads.index(head)
    for _ in range(place // wide):
        live.keyboard.press("ArrowDown")
    for _ in range(place % wide):
        live.keyboard.press("ArrowRight")
    assert live.evaluate("+document.activeElement.dataset.head") == head
    live.keyboard.press("Space")
    assert "1 head off" in text(live, "verdict")
    assert live.get_attribute(f"[data-head='{head}']", "aria-pressed") == "false"
    live.focus("#keep")
    live.keyboard.press("Home")
    assert text(live, "keep-text").startswith("0 of")


def test_typing_with_completion_and_accents(live):
    live.click("#write")
    live.fill("#typed", "")
    live.keyboard.type("the do")
    offered = live.locator("#offers li").all_inner_texts()
    assert {"dog", "dóg"} <= set(offered)
    for _ in range(1 + offered.index("dóg")):
        live.keyboard.press("ArrowDown")
    live.keyboard.press("Enter")
    live.keyboard.type("slept .")
    assert live.input_value("#typed") == "the dóg slept ."
    assert len(live.locator("#words li").all()) == 4
    live.keyboard.type(" xyz")
    live.wait_for_function("document.querySelector('#unknown').textContent.includes('xyz')")
    before = text(live, "words")
    live.click("#source button >> nth=1")
    assert live.get_attribute("#source button >> nth=1", "aria-pressed") == "false"
    assert text(live, "words") != before


def test_accuracy_is_the_library_s(live):
    live.wait_for_function("headtoolsLive.times.accuracy !== undefined")
    assert live.evaluate("headtoolsLive.times.accuracy") == pytest.approx(course(live, "accuracy"), abs=2e-4)
    kept, share = course(live, "curves.encoder.gradient[13]")
    assert len(live.workers) == 1  # beside the page, so that no press on a head waits for it
    live.evaluate("delete headtoolsLive.times.accuracy")
    live.fill("#keep", str(kept))
    live.wait_for_function("headtoolsLive.times.accuracy !== undefined")
    assert live.evaluate("headtoolsLive.times.accuracy") == pytest.approx(share, abs=2e-3)


def test_every_view_of_every_kind(live):
    for kind in ("encoder", "cross", "decoder"):
        for view in ("arcs", "map", "inside"):
            live.check(f"[name=view][value={view}]", force=True)
            live.locator(f".grid.{kind} [data-head]").nth(3).focus()
            assert live.locator("#view").inner_html()
            assert live.locator("#told li").count() > 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shuts_no_reader_out(live, scheme):
    from axe_playwright_python.sync_playwright import Axe

    live.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    live.click("#start")
    for prepare in (
        "",
        "document.querySelector('#tour-show').click()",
        "document.querySelector('#tour-end').click()",
        "document.querySelector('[name=view][value=inside]').click()",
    ):
        live.evaluate(prepare)
        found = Axe().run(live, options={"preload": False}).response["violations"]
        assert not [(v["id"], v["nodes"][0]["html"][:150], v["nodes"][0]["failureSummary"][:300]) for v in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_at_any_width(live, width):
    live.set_viewport_size({"width": width, "height": 900})
    for sentence in (course(live, "first"), max(range(100), key=lambda i: len(course(live, f"sentences[{i}].source")))):
        live.select_option("#pick", str(sentence))
        for view in ("arcs", "map", "inside"):
            live.check(f"[name=view][value={view}]", force=True)
            assert live.evaluate("document.documentElement.scrollWidth") <= width


def test_without_a_script(page, address):
    context = page.context.browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(address)
    seen = still.inner_text("body")
    assert "This is a still" in seen
    assert "What breaks without a head" in seen
    assert still.locator("#words li").count() >= 3
    assert still.locator(".still").count() == 3
    assert still.locator("#curve polyline").count() >= 3
    assert not still.is_visible("#start")
    context.close()
