"""A real JupyterLab on a free port, and a browser that looks at it."""

from __future__ import annotations

import json
import os
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
AT_HOME = {"127.0.0.1", "localhost"}


@contextmanager
def jupyterlab(folder: Path, theme: str = "light") -> Iterator[str]:
    """Serve ``folder`` in JupyterLab, news and updates off, its settings in a folder of their own; gives the URL."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    home = Path(tempfile.mkdtemp(prefix="lab-"))
    (home / "labconfig").mkdir()
    disabled = {"@jupyterlab/apputils-extension:announcements": True}
    (home / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    named = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[theme]
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": named}))
    repo = Path(__file__).resolve().parents[2]
    env = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(repo), os.environ.get("PYTHONPATH", "")])),
    }
    # No token: only this test's own server on the loopback address, for as long as the test lasts.
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += [f"--ServerApp.root_dir={folder}", "--expose-app-in-browser"]
    log = home / "log"
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, server, log)
        yield url
    finally:
        server.terminate()  # JupyterLab ends its kernels on this signal
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wait_for(url: str, server: subprocess.Popen, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/api", timeout=2)
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not answer at {url}:\n{log.read_text()[-2000:]}")


@contextmanager
def browser() -> Iterator:
    """Start Chromium and give a page; ``page.strangers`` are requests that left the machine, ``page.errors`` faults."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = chromium.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.strangers, page.errors = [], []
        page.on("request", lambda r: _note_stranger(page, r.url))
        page.on("websocket", lambda w: _note_stranger(page, w.url))
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


def open_notebook(page, url: str, name: str) -> None:
    """Open a notebook in a workspace of its own."""
    page.goto(f"{url}/lab/workspaces/w{time.monotonic_ns()}/tree/{name}?reset", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)


def run_all(page, seconds: float = 180) -> None:
    """Run every cell of the open notebook and wait until the last is done."""
    page.wait_for_function(
        """() => {
            const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
            return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
        }""",
        timeout=60_000,
    )
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
            const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
            const code = cells.filter(c => c.cell_type === 'code' && c.source.trim());
            const done = c => c.execution_count !== null && c.executionState !== 'running';
            const failed = c => c.outputs.some(o => o.output_type === 'error');
            return code.length && (code.every(done) || code.some(failed));
        }""",
        timeout=seconds * 1000,
    )


def failed_cells(page) -> list[str]:
    """Give the error outputs of the open notebook."""
    return page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells
            .filter(c => c.cell_type === 'code')
            .flatMap(c => c.outputs.filter(o => o.output_type === 'error').map(o => `${o.ename}: ${o.evalue}`))"""
    )
