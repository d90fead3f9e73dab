"""What headtools is made of may be used by everybody, and opens no line out of the machine."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata

import pytest

FREE = re.compile(r"MIT|BSD|Apache|ISC|MPL|PSF|Python Software|HPND|Unlicense|ZPL|CC0|LGPL|0BSD|zlib|CMU", re.I)
CLOSED = re.compile(r"AGPL|non-?commercial|proprietary", re.I)


def licence(package):
    """What a package says its licence is, in any of three ways; `make sbom` does not know all of them."""
    fields = metadata(package)
    classes = [line.split(" :: ")[-1] for line in fields.get_all("Classifier", []) if line.startswith("License :: ")]
    field = (fields.get("License") or "").strip().partition("\n")[0][:80]
    return fields.get("License-Expression") or ", ".join(filter(None, [field, *classes]))


def test_nothing_that_learners_need_forbids_use(root):
    """Of all packages of their lock that are installed here; torch is in no lock."""
    names = re.findall(r"^([a-z0-9-]+)==", (root / "requirements-course.lock").read_text("utf-8"), re.M)
    licences = {}
    for name in ["torch", *names]:
        try:
            licences[name] = licence(name)
        except PackageNotFoundError:
            continue  # for another system
    assert len(licences) > 80
    assert {name: words for name, words in licences.items() if not FREE.search(words) or CLOSED.search(words)} == {}


NO_NETWORK = """
import importlib, pkgutil, socket, subprocess, sys

def refuse(event, arguments):
    if event.startswith(("socket.connect", "socket.getaddrinfo", "socket.gethostby", "urllib.Request", "http.client")):
        raise SystemExit(f"{event} {arguments}")

sys.addaudithook(refuse)
import headtools

for name in headtools.__all__:
    getattr(headtools, name)
for module in pkgutil.walk_packages(headtools.__path__, "headtools."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
model, tokenizer = headtools.load()
headtools.translate(model, tokenizer, headtools.corpus("organism", limit=1)[0].words)
print("quiet")
"""


@pytest.mark.full  # a process of its own that imports every module; the next test reads the code instead
def test_importing_and_using_headtools_opens_no_connection(tmp_path, root):
    """Not even with the variables that keep other libraries offline taken away."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"PYTHONPATH": str(root), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub")}
    ran = subprocess.run([sys.executable, "-c", NO_NETWORK], env=environment, capture_output=True, text=True)
    assert ran.stdout == "quiet\n", ran.stdout + ran.stderr


def test_the_code_speaks_of_no_network(root):
    """One function imports what connects, to get a real model that is asked for; pages load nothing."""
    speaking = re.compile(
        r"^\s*(?:import|from)\s+(?:requests|urllib\.request|http\.client|httpx|aiohttp|socket|huggingface_hub)\b", re.M
    )
    found = [path.name for path in (root / "headtools").rglob("*.py") if speaking.search(path.read_text("utf-8"))]
    assert found == ["fetch.py"]
