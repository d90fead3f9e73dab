"""The live page, opened from disk in a real browser: its tour, its sentences, its keys, and readers of all kinds."""

import re
from itertools import pairwise

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
    assert " ".join(live.locator("#words .said").all_inner_texts()) == course(
        live, "sentences[headtoolsLive.course.first.sentence].target"
    )
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


def test_a_sentence_of_ones_own_needs_no_full_stop_and_is_never_called_right(live):
    live.click("#write")
    live.fill("#typed", "The dóg slept")
    assert live.locator("#source [data-at]").all_inner_texts() == ["the", "dóg", "slept", "."]
    assert live.locator("#words li").count() == 4
    assert text(live, "verdict").startswith("Nothing changed with all")
    live.fill("#keep", "0")
    live.locator("#verdict", has_text="heads off").wait_for(timeout=5000)
    assert re.match(r"\d+ of 4 changed", text(live, "verdict"))
    live.locator("#presets button").first.click()  # another sentence comes, and the box for one's own closes
    assert live.locator("#own").is_hidden()


def test_the_tour_leaves_no_role_marked_and_no_press_changed(live):
    live.locator("#role").select_option(index=1)
    assert live.locator(".found").count() > 0
    live.click("#start")
    assert live.locator(".found").count() == 0
    live.keyboard.press("Escape")
    assert live.is_checked("[name=press][value=switch]")


def test_accuracy_is_the_library_s(live):
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
        found = Axe().run(live, options={"preload": False, "resultTypes": ["violations"]}).response["violations"]
        assert not [(v["id"], v["nodes"][0]["html"][:150], v["nodes"][0]["failureSummary"][:300]) for v in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_at_any_width(live, width):
    live.set_viewport_size({"width": width, "height": 900})
    for sentence in (
        course(live, "first.sentence"),
        max(range(100), key=lambda i: len(course(live, f"sentences[{i}].source"))),
    ):
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


# ---- what a visitor presses first ------------------------------------------------------------------------------------


def wrong(page) -> int:
    return page.locator("#words .wrong").count()


def tried(page) -> list[int]:
    """Wait until each head has been tried alone; return for each how many words it changes."""
    page.wait_for_function("/^(None|\\d+) of/.test(document.querySelector('#changing').textContent)", timeout=60_000)
    heads = "[...document.querySelectorAll('[data-head]')].sort((a, b) => a.dataset.head - b.dataset.head)"
    return page.evaluate(f"{heads}.map(head => +(head.parentNode.dataset.changes ?? 0))")


def test_the_first_press_breaks_words_and_ends_the_pulse(live):
    first = course(live, "first.head")
    style = f"getComputedStyle(document.querySelector('[data-head=\"{first}\"]')).animationName"
    assert live.locator(".begin").get_attribute("data-head") == str(first)
    assert live.is_visible("#begin")
    assert live.evaluate(style) == "none"  # less motion was asked for
    live.emulate_media(reduced_motion="no-preference")
    assert live.evaluate(style) == "begin"
    press(live, first)
    assert wrong(live) >= 6
    assert live.locator(".begin").count() == 0
    assert not live.is_visible("#begin")


def test_presets_break_words(live):
    for preset in live.locator("[data-do=without]").all():
        preset.click()
        step = course(live, f"tour.{preset.get_attribute('data-step')}")
        off = live.locator("[aria-pressed=false][data-head]").evaluate_all("heads => heads.map(h => +h.dataset.head)")
        assert sorted(off) == sorted(step["heads"])
        assert live.input_value("#pick") == str(step["sentence"])
        assert wrong(live) >= 2
    live.click("[data-do=random]")
    assert "with 24 heads off" in text(live, "verdict")
    live.click("#all-on")
    assert text(live, "verdict").startswith("All right")


def test_heads_that_change_the_sentence_are_marked(live):
    offered = live.locator("#pick optgroup").first.locator("option").evaluate_all("all => all.map(one => +one.value)")
    assert offered[0] == course(live, "first.sentence")  # telling sentences come first
    live.click("#next")
    live.wait_for_function(f"document.querySelector('#pick').value === '{offered[1]}'")
    changes = tried(live)
    assert max(changes) >= 5
    assert text(live, "changing").startswith(f"{sum(map(bool, changes))} of {len(changes)} heads change this sentence")
    assert sum(map(bool, changes)) >= 4
    for head in (changes.index(max(changes)), changes.index(1), changes.index(0)):
        press(live, head)
        assert wrong(live) == changes[head]
        live.click("#all-on")
    head = changes.index(max(changes))
    assert f"it changes {max(changes)} words" in live.get_attribute(f"[data-head='{head}']", "aria-label")
    live.focus(f"[data-head='{head}']")
    assert f"changes {max(changes)} words" in text(live, "look-alone")


def test_the_trial_starts_again_with_another_sentence_and_lets_presses_through(live):
    live.select_option("#pick", "0")
    assert text(live, "changing").startswith("Trying each head alone: 0 of")
    live.select_option("#pick", str(course(live, "first.sentence")))
    press(live, course(live, "first.head"))
    assert text(live, "changing").startswith("Trying")  # the press did not wait for the trial
    assert wrong(live) >= 6
    assert tried(live)[course(live, "first.head")] == wrong(live)
    live.click("#source button >> nth=0")  # another accent: another sentence
    assert live.locator("[data-changes]").count() == 0
    live.wait_for_selector("[data-changes]", state="attached")


def test_cards_by_pointer_and_keys(live):
    card = live.locator("#card")
    live.hover("#source .accented >> nth=0")
    card.wait_for()
    assert "begins with s'" in card.inner_text()
    assert "encoder" in card.inner_text()
    box, translation = card.bounding_box(), live.locator("#words").bounding_box()
    assert box["y"] + box["height"] <= translation["y"]  # what the accent does there stays in sight
    live.keyboard.press("Escape")
    card.wait_for(state="hidden")
    live.hover("#source .name")
    card.wait_for()
    assert "topic" in card.inner_text()
    live.hover("#verdict")
    card.wait_for(state="hidden")

    press(live, course(live, "first.head"))
    live.focus("#all-on")
    live.focus("#copy")
    live.keyboard.press("Tab")  # the first word of the translation
    card.wait_for()
    said = card.inner_text()
    assert live.evaluate("document.activeElement.getAttribute('aria-describedby')") == "card"
    assert "Should be" in said
    assert live.locator("#card .lost").count() == 1
    assert "Told by" in live.inner_text("#card .lost")
    name = live.get_attribute(f"[data-head='{course(live, 'first.head')}']", "aria-label").split(",")[0].lower()
    tried(live)
    live.keyboard.press("Tab")
    card.wait_for()
    assert f"Switched off alone, {name}" in card.inner_text()
    live.click("[data-step=neighbour]")
    live.hover("#words .wrong button >> nth=0")
    live.wait_for_selector("#card .lost")
    assert "left accent" in live.inner_text("#card .lost")
    assert "read by encoder 4.2" in live.inner_text("#card .lost")
    live.click("#start")
    live.focus("#write")
    live.keyboard.press("Tab")
    card.wait_for()
    live.keyboard.press("Escape")  # closes the card, then the tour
    assert live.is_visible("#tour")
    live.keyboard.press("Escape")
    assert live.is_hidden("#tour")


def test_cards_by_touch(page, address):
    context = page.context.browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    phone = context.new_page()
    phone.goto(address)
    phone.wait_for_selector("html.alive")
    for word in ("#words button >> nth=0", "#source button >> nth=0"):
        phone.tap(word)
        phone.wait_for_selector("#card", state="visible")
        box = phone.locator("#card").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        phone.tap("h1")
        phone.wait_for_selector("#card", state="hidden")
    assert (
        phone.get_attribute("#source button >> nth=0", "aria-pressed") == "false"
    )  # the touch took the accent as well
    context.close()


def test_every_word_says_what_it_says(live):
    said = live.locator("#words .says").all_inner_texts()
    assert len(said) == live.locator("#words li").count()
    assert sum("accent after" in says for says in said) == sum(
        word.endswith("'n") for word in live.locator("#words .said").all_inner_texts()
    )


def test_a_link_carries_sentence_and_heads(live):
    first = course(live, "first.head")
    live.select_option("#pick", "0")
    press(live, first)
    live.click("#source button >> nth=0")
    source, broken, link = text(live, "source"), wrong(live), live.evaluate("location.href")
    assert broken
    assert link.endswith("&off=e5.1")
    live.goto("about:blank")
    live.goto(link)
    live.wait_for_selector("html.alive")
    assert (text(live, "source"), wrong(live)) == (source, broken)
    assert live.get_attribute(f"[data-head='{first}']", "aria-pressed") == "false"
    live.evaluate("location.hash = '#s=21&off=e5.1,e4.2,z9.9'")  # a link pasted into the same page
    live.wait_for_function("document.querySelector('#pick').value === '21'")
    assert "2 heads off" in text(live, "verdict")
    live.context.grant_permissions(["clipboard-read", "clipboard-write"])
    live.click("#copy")
    live.wait_for_function("document.querySelector('#copied').textContent")
    assert text(live, "copied") == "Copied."
    assert live.evaluate("navigator.clipboard.readText()").endswith("#s=21&off=e4.2,e5.1")
    live.evaluate("location.hash = '#s=no such words&off=e5.1'")
    live.wait_for_function(f"document.querySelector('#pick').value === '{course(live, 'first.sentence')}'")


def test_layer_0_is_on_top_and_cross_attention_is_folded(live):
    rows = live.locator(".grid.encoder .layer").all_inner_texts()
    assert [row.split()[-1] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    cross = live.locator(".grid.cross .row:visible")
    assert cross.count() == 1
    assert "guided alignment" in live.inner_text(".fold")
    live.focus(".grid.cross [data-head] >> nth=0")
    live.keyboard.press("ArrowDown")  # nothing is below
    assert live.evaluate("document.activeElement.checkVisibility()")
    live.click(".fold button")
    assert cross.count() == 6
    live.focus(".grid.cross [data-head] >> nth=0")
    live.keyboard.press("ArrowDown")
    assert live.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Cross 1.0")
    live.click(".fold button")
    assert cross.count() == 1


def test_all_heads_are_in_sight_on_a_small_laptop(live):
    live.set_viewport_size({"width": 1366, "height": 768})
    last = live.locator(".grid.encoder [data-head]").last.bounding_box()
    assert last["y"] + last["height"] <= 768
    live.check("[name=view][value=inside]", force=True)
    boxes = [live.locator(f"#{name}").bounding_box() for name in ("text", "result", "heads", "many")]
    gaps = [below["y"] - above["y"] - above["height"] for above, below in pairwise(boxes)]
    assert max(gaps) < 20
    live.locator("#keep").scroll_into_view_if_needed()
    assert live.locator("#result").bounding_box()["y"] == pytest.approx(0, abs=1)  # the translation stays in sight
    live.focus("#keep")
    for _ in range(3):
        live.keyboard.press("ArrowLeft")
    live.keyboard.press("Home")
    assert wrong(live) >= 1


def test_never_more_words_wrong_than_there_are(live):
    """Without heads the model writes words beyond the translation's: they are counted on their own."""
    live.fill("#keep", "0")
    live.locator("#verdict", has_text="heads off").wait_for(timeout=5000)
    wrong, words = map(int, re.match(r"(\d+) of (\d+) wrong", text(live, "verdict")).groups())
    assert wrong <= words
    extra = live.locator("#words .missed", has_text="one too many").count()
    assert (f", {extra} too many" in text(live, "verdict")) == (extra > 0)
