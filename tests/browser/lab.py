"""A real JupyterLab on a free port, and a browser that looks at it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]  # no network
AT_HOME = {"127.0.0.1", "localhost"}
# Seconds after which something will not come any more. Reached only by what is broken: what waits asks for a condition.
PATIENCE = 240


@contextmanager
def jupyterlab(folder: Path, theme: str = "light", checker: bool = False) -> Iterator[str]:
    """Serve ``folder`` in JupyterLab as `make lab` does, with a reader's settings in a new folder; gives the URL.

    ``checker`` leaves jupyterlab-a11y-checker on, which only developers have.
    """
    home = Path(tempfile.mkdtemp(prefix="lab-"))
    named = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[theme]
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": named}))
    (home / "labconfig").mkdir()
    (home / "labconfig" / "page_config.json").write_text(
        json.dumps({"disabledExtensions": {"jupyterlab-a11y-checker": not checker}})
    )
    repo = Path(__file__).resolve().parents[2]
    env = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home),
        "JUPYTER_CONFIG_PATH": str(repo / "tools" / "jupyter"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "IPYTHONDIR": str(home / "ipython"),
        "HEADTOOLS_PROGRESS": "",  # as a learner has it: the file beside the lessons
        "PYTHONPATH": os.pathsep.join(filter(None, [str(repo), os.environ.get("PYTHONPATH", "")])),
    }
    # No token: only this test's own server on the loopback address, for as long as the test lasts.
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += [f"--ServerApp.root_dir={folder}", "--expose-app-in-browser"]
    server, url = start(command, env, home / "log")
    try:
        yield url
    finally:
        _end(server)
        shutil.rmtree(home, ignore_errors=True)


def start(command: list[str], env: dict[str, str], log: Path, tries: int = 5) -> tuple[subprocess.Popen, str]:
    """Start the server on a free port; where another program was faster to take it, on another one."""
    for _ in range(tries):
        port, name = free_port(), secrets.token_hex(4)
        at = [f"--ServerApp.port={port}", f"--ServerApp.base_url=/{name}/"]  # by its name we know that it is ours
        with log.open("w") as out:
            server = subprocess.Popen([*command, *at], stdout=out, stderr=subprocess.STDOUT, env=env)
        url = f"http://127.0.0.1:{port}/{name}"
        if _answers(url, server):
            return server, url
        _end(server)
    raise RuntimeError(f"JupyterLab did not answer at {url}, the last of {tries} tries:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    """Give a port that nobody uses now; somebody may a moment later."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _answers(url: str, server: subprocess.Popen, seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/api", timeout=5)
            return True
        except OSError:  # nobody there yet, or somebody else
            time.sleep(0.1)
    return False


def _end(server: subprocess.Popen) -> None:
    server.terminate()  # JupyterLab ends its kernels on this signal
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def browser() -> Iterator:
    """Start Chromium without a network and give a page.

    ``page.strangers`` are requests that wanted to leave the machine, ``page.errors`` faults, ``page.failed`` requests
    that found nothing.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE * 1000)
        page = chromium.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.strangers, page.errors, page.failed = [], [], []
        page.on("request", lambda r: _note_stranger(page, r.url))
        page.on("websocket", lambda w: _note_stranger(page, w.url))
        page.on("response", lambda r: page.failed.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.on("pageerror", lambda e: page.errors.append(str(e)))
        page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
        try:
            yield page
        finally:
            chromium.close()


def _note_stranger(page, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"data", "blob", "about"} and parts.hostname not in AT_HOME:
        page.strangers.append(url)


def open_notebook(page, url: str, name: str, height: int = 1000) -> None:
    """Open a notebook in a workspace of its own, in a window ``height`` pixels high; earlier faults are forgotten."""
    page.strangers.clear(), page.errors.clear(), page.failed.clear()
    page.set_viewport_size({"width": 1300, "height": height})
    page.goto(f"{url}/lab/workspaces/w{time.monotonic_ns()}/tree/{name}?reset", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    wait_for_kernel(page)


def wait_for_kernel(page) -> None:
    """Wait until the open notebook's kernel is there and has nothing to do."""
    page.wait_for_function(
        """() => {
            const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
            return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
        }"""
    )


def run_all(page, seconds: float = 1200) -> None:
    """Run every cell of the open notebook and wait until the last is done, or one has failed."""
    wait_for_kernel(page)
    # Clearing also resets the counts that tell below when a cell is done. Running is not awaited: it can take minutes.
    page.evaluate(
        """async () => {
            await window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs');
            window.jupyterapp.commands.execute('notebook:run-all-cells');
        }"""
    )
    # Asked of the notebook's model, because JupyterLab does not draw the cells far below.
    page.wait_for_function(
        """() => {
            const panel = window.jupyterapp.shell.currentWidget;
            const code = panel.content.model.sharedModel.cells.filter(c => c.cell_type === 'code' && c.source.trim());
            const done = c => c.execution_count !== null && c.executionState !== 'running';
            const failed = c => c.outputs.some(o => o.output_type === 'error');
            const died = /dead|restarting/.test(panel.sessionContext.session?.kernel?.status);
            return died || code.length && (code.every(done) || code.some(failed));
        }""",
        timeout=seconds * 1000,
        polling=500,  # milliseconds; unasked, the browser would look 60 times a second
    )
    wait_for_kernel(page)


def cells(page) -> list[dict]:
    """Give the cells of the open notebook: ``cell_type``, ``source``, ``outputs`` as the notebook's file has them."""
    return page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map(c => c.toJSON())"
    )


def failed_cells(page) -> list[str]:
    """Give the errors of the open notebook, and the cells that were not run."""
    code = [cell for cell in cells(page) if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    errors = [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    not_run = [f"not run: {''.join(cell['source'])[:60]}" for cell in code if cell["execution_count"] is None]
    return [f"{error['ename']}: {error['evalue']}" for error in errors] or not_run


def show_cell(page, place: int):
    """Scroll to a cell, as a reader does, and give its element once JupyterLab has drawn all its outputs."""
    find = "window.jupyterapp.shell.currentWidget.content.widgets[place]"
    page.evaluate(
        """async place => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.activeCellIndex = place;
            await notebook.scrollToItem(place, 'center');
        }""",
        place,
    )
    drawn = f"""place => {{
        const cell = {find};
        const areas = cell.outputArea ? cell.node.querySelectorAll('.jp-OutputArea-child').length : 0;
        return cell.node.isConnected && cell.placeholder === false && areas >= (cell.outputArea?.model.length ?? 0);
    }}"""
    page.wait_for_function(drawn, arg=place)
    return page.evaluate_handle(f"place => {find}.node", place).as_element()
