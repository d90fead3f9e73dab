"""``make lab`` serves the first lesson at the address it prints, with a token and without news."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # starts JupyterLab
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)\S*token=(\w+)")


@pytest.fixture(scope="module")
def printed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[re.Match]:
    """The address that tools/lab.sh prints, while its server runs in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("a clone") / "head tools"
    shutil.copytree(root / "tools", folder / "tools")
    (folder / "notebooks").mkdir()
    for path in (root / "notebooks").glob("00_*.ipynb"):
        shutil.copy(path, folder / "notebooks")
    python = folder / ".venv" / "bin" / "python"  # the environment that `make lab` makes before
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "DISPLAY", "WAYLAND", "BROWSER"))}
    env |= {"HOME": str(folder)}
    log = folder / "log"
    with log.open("w") as out:
        command = ["sh", "tools/lab.sh", "--no-browser", "--port=0"]
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 60
        while not (found := ADDRESS.search(log.read_text())) and time.monotonic() < end and server.poll() is None:
            time.sleep(0.1)
        assert found, log.read_text()[-2000:]
        wait_for(int(found[1]), end)  # Jupyter prints its address before it listens there
        yield found
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def wait_for(port: int, end: float) -> None:
    """Return once something listens at the port; give up at the end, in seconds of the monotonic clock."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def test_the_address_opens_the_first_lesson(printed: re.Match):
    assert "/lab/tree/my-lessons/00_start_here.ipynb" in printed[0]
    assert "jupyter-config-data" in get(printed[0])
    base = printed[0].split("/lab/")[0]
    content = get(f"{base}/api/contents/my-lessons/00_start_here.ipynb?content=0&token={printed[2]}")
    assert '"type": "notebook"' in content


def test_without_the_token_nothing_is_served(printed: re.Match):
    base = printed[0].split("/lab/")[0]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(f"{base}/api/contents/my-lessons/00_start_here.ipynb")


def test_news_and_updates_are_off(printed: re.Match):
    base = printed[0].split("/lab/")[0]
    assert '"@jupyterlab/apputils-extension:announcements"' in get(printed[0])
    assert get(f"{base}/lab/api/news?token={printed[2]}") == '{"news": []}'
    assert get(f"{base}/lab/api/update?token={printed[2]}") == '{"notification": null}'


def test_boxes_have_their_looks(printed: re.Match, root: Path):
    base = printed[0].split("/lab/")[0]
    assert "custom/custom.css" in get(printed[0])
    looks = (root / "tools" / "jupyter" / "custom" / "custom.css").read_text("utf-8")
    assert get(f"{base}/custom/custom.css?token={printed[2]}") == looks


def test_the_list_has_lessons_and_pages_alone(printed: re.Match):
    base = printed[0].split("/lab/")[0]
    for name, text in (("my-progress.json", "{}"), ("glossary.md", "words")):
        body = json.dumps({"type": "file", "format": "text", "content": text}).encode()
        address = f"{base}/api/contents/my-lessons/{name}?token={printed[2]}"
        with urllib.request.urlopen(urllib.request.Request(address, body, method="PUT"), timeout=20) as answer:
            assert answer.status == 201
    listing = json.loads(get(f"{base}/api/contents/my-lessons?token={printed[2]}"))
    names = sorted(entry["name"] for entry in listing["content"])
    assert names == ["00_start_here.ipynb", "glossary.md"]
