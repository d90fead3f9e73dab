"""What headtools is made of is known: a bill of materials, digests, and no line out of the machine."""

import json
import os
import re
import subprocess
import sys
from email.message import Message
from types import SimpleNamespace

import pytest
import sbom


def test_the_bill_names_all_that_is_needed(root, tmp_path, capsys):
    path = tmp_path / "a" / "sbom.json"
    status = sbom.main(["--json", str(path)])
    told = json.loads(path.read_text("utf-8"))
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.5")
    names = {part["name"] for part in told["components"]}
    _, missing = sbom.needed("headtools")
    assert status == bool(missing)
    assert {"torch", "transformers", "safetensors", "numpy", "jinja2"} <= names  # torch needs jinja2
    assert "hypothesis" not in names
    assert told["metadata"]["component"]["name"] == "headtools"
    own = told["metadata"]["component"]["bom-ref"]
    reached, graph = {own}, {one["ref"]: one["dependsOn"] for one in told["dependencies"]}
    while more := {need for one in reached for need in graph[one]} - reached:
        reached |= more
    assert reached == graph.keys() == {own, *(part["bom-ref"] for part in told["components"])}
    printed = capsys.readouterr().out
    for part in told["components"]:
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}".replace("+", "%2B")
        assert part["licenses"]
        assert {one["license"]["id"] for one in part["licenses"] if "id" in one.get("license", {})} <= set(sbom.SPDX)
        assert re.search(rf"\s{re.escape(part['version'])}\s", printed)
    counts = re.findall(r"^ +(\d+)  ", printed, re.M)
    assert f"\n{sum(map(int, counts))} packages\n" in printed
    assert len(told["components"]) + 1 == sum(map(int, counts))


def test_extras_add_what_they_need():
    plain = {dist.metadata["Name"].lower() for dist in sbom.needed("headtools")[0]}
    tested = {dist.metadata["Name"].lower() for dist in sbom.needed("headtools", ["test"])[0]}
    assert "hypothesis" in tested - plain


def test_what_is_not_installed_is_told(monkeypatch, capsys):
    assert sbom.needed("no-such-package-anywhere") == ({}, ["no-such-package-anywhere"])
    monkeypatch.setattr(sbom, "needed", lambda root, extras: ({}, ["lost"]))
    assert sbom.main([]) == 1
    assert "lost is needed" in capsys.readouterr().err


OSI = "License :: OSI Approved"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT AND BSD-3-Clause"), ("License", "x")], "MIT AND BSD-3-Clause"),
        ([("Classifier", f"{OSI} :: MIT License"), ("License", "x")], "MIT"),
        ([("Classifier", f"{OSI} :: BSD License"), ("License", "BSD 3-Clause License\nmore")], "BSD-3-Clause"),
        ([("Classifier", f"{OSI} :: BSD License")], "BSD License"),
        ([("Classifier", f"{OSI} :: A"), ("Classifier", f"{OSI} :: MIT"), ("License", "MIT")], "A, MIT"),
        ([("Classifier", OSI), ("License", "BSD\nmany lines")], "BSD"),
        ([("License", "Apache License, Version 2.0")], "Apache-2.0"),
        ([("Classifier", "Topic :: Text")], "not declared"),
    ],
)
def test_licences(fields, expected):
    told = Message()
    for name, value in fields:
        told[name] = value
    assert sbom.licence(SimpleNamespace(metadata=told)) == expected


def test_nothing_that_learners_need_forbids_use():
    said = {dist.metadata["Name"]: sbom.licence(dist) for dist in sbom.needed("headtools", ["course"])[0]}
    assert "not declared" not in said.values()
    assert not [name for name, words in said.items() if re.search(r"AGPL|non-?commercial|proprietary", words, re.I)
                and not name.lower().startswith(("nvidia", "cuda"))]  # fmt: skip


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


def test_importing_and_using_headtools_opens_no_connection(tmp_path, root):
    """Not even with the variables that keep other libraries offline taken away."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"PYTHONPATH": str(root), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub")}
    ran = subprocess.run([sys.executable, "-c", NO_NETWORK], env=environment, capture_output=True, text=True)
    assert ran.stdout == "quiet\n", ran.stdout + ran.stderr


def test_the_code_speaks_of_no_network(root):
    """No module of headtools imports what connects; pages hold links for people and load nothing."""
    speaking = re.compile(
        r"^\s*(?:import|from)\s+(?:requests|urllib\.request|http\.client|httpx|aiohttp|socket|huggingface_hub)\b", re.M
    )
    found = [path.name for path in (root / "headtools").rglob("*.py") if speaking.search(path.read_text("utf-8"))]
    assert not found
