"""Every page of the site opens in a browser without a network, without an error, and for who cannot see it."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

SERIOUS = ("serious", "critical")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    pytest.importorskip("myst_nb")
    import make_site

    out = tmp_path_factory.mktemp("site") / "html"
    assert make_site.build(out) == 0  # warnings are errors
    return out


@pytest.fixture(scope="module")
def served(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def page(page, served):
    page.route("**/*", lambda r: r.continue_() if r.request.url.startswith(served) else r.abort())
    page.on("requestfailed", lambda r: page.failed.append(r.url))
    return page


def pages(site):
    return sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_modules" not in path.parts)


def test_every_page(site, served, page):
    from axe_playwright_python.sync_playwright import Axe

    axe, wrong = Axe(), []
    assert len(pages(site)) >= 15
    for name in pages(site):
        page.failed.clear(), page.errors.clear(), page.strangers.clear()
        page.goto(f"{served}/{name}", wait_until="load")
        page.wait_for_function("!window.MathJax?.startup?.promise || window.MathJax.startup.promise.then(() => true)")
        wrong += [f"{name}: {what}" for what in [*page.failed, *page.errors, *page.strangers]]
        mute = page.evaluate("[...document.images].filter(i => !i.hasAttribute('alt')).map(i => i.src.slice(0, 60))")
        blank = page.evaluate(
            "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src.slice(0, 60))"
        )
        wrong += [f"{name}: no alt: {src}" for src in mute] + [f"{name}: not drawn: {src}" for src in blank]
        for found in axe.run(page).response["violations"]:
            if found["impact"] in SERIOUS:
                wrong.append(f"{name}: {found['id']}: {found['nodes'][0]['html'][:150]}")
    assert not wrong, "\n".join(wrong)


def test_mathematics_is_drawn(served, page):
    page.goto(f"{served}/cheat_sheet.html")
    page.wait_for_selector("mjx-container svg, mjx-container mjx-math", state="attached")


def test_search_finds_a_word_of_a_lesson(served, page):
    page.goto(f"{served}/search.html?q=induction")
    page.wait_for_selector("#search-results li a")
    assert any("specialise" in text for text in page.locator("#search-results li a").all_inner_texts())


def test_dark_and_light(served, page):
    page.goto(f"{served}/index.html")
    backgrounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
