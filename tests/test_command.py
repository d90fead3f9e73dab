"""The command line does what its functions do, and its exit status tells how it went."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

import headtools as ht
from headtools.command import main

FEW = ["--limit", "8"]


def test_help_names_every_command_and_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(name in said for name in ("report", "roles", "importance", "prune", "examples:", "Exit status"))


@pytest.mark.parametrize("words", [[], ["sing", "x"], ["prune", "organism", "--keep", "2", "--out", "x"],
                                   ["prune", "organism", "--out", "x"], ["report", "organism"],
                                   ["roles", "organism", "--limit", "one"]])  # fmt: skip
def test_what_is_not_understood_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["roles", "./nowhere"], "nothing is there"),
        (["roles", "organism", "--corpus", "no.conllu"], "no.conllu"),
        (["roles", "organism", "--out", "x.txt"], "written as .csv or .json"),
        (["report", "organism", "--out", "no/such/folder.html"], "is no folder"),
    ],
)
def test_what_is_wrong_ends_with_1(words, why, capsys):
    assert main(words) == 1
    said = capsys.readouterr()
    assert why in said.err
    assert not said.out
    assert "Traceback" not in said.err


def test_importance(tmp_path, capsys):
    assert main(["importance", "organism", *FEW, "--out", str(tmp_path / "scores.csv")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "scores.csv")
    model, tokenizer = ht.load()
    wanted = ht.gradient(model, ht.label(model, tokenizer, ht.corpus("organism", limit=8))).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "scores.csv"), wanted)


def test_roles(tmp_path):
    assert main(["roles", "organism", *FEW, "--held", "--out", str(tmp_path / "roles.json")]) == 0
    rows = json.loads((tmp_path / "roles.json").read_text())
    assert rows
    assert all(row["holds"] for row in rows)


def test_prune_then_report(tmp_path, capsys):
    smaller = tmp_path / "smaller"
    assert main(["prune", "organism", *FEW, "--keep", "0.75", "--kind", "encoder", "--out", str(smaller)]) == 0
    assert "36 of 48 heads left" in capsys.readouterr().out
    assert len(ht.pruned(ht.load(smaller)[0])) == 12
    assert main(["prune", "organism", "--keep", "0.5", "--out", str(smaller)]) == 1
    page = tmp_path / "page.html"
    assert main(["report", str(smaller), "--corpus", "organism", *FEW, "--out", str(page)]) == 0
    assert "36 encoder heads in 6 layers" in page.read_text()


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "headtools", "roles", "./nowhere"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("headtools roles: ./nowhere")


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs the extra scale")
def test_two_processes_that_accelerate_starts(tmp_path, capsys):
    """The same file, written once, told once; batches of 32, of which one process gets two and the other one."""
    words = ["importance", "organism", "--limit", "66", "--out"]
    assert main([*words, str(tmp_path / "one.csv")]) == 0
    launch = [Path(sys.executable).with_name("accelerate"), "launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
              "-m", "headtools"]  # fmt: skip
    done = subprocess.run([*launch, *words, tmp_path / "two.csv", "--run", tmp_path / "kept"], capture_output=True,
                          text=True, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "two.csv")]
    assert len(list((tmp_path / "kept").iterdir())) == 3
    one, two = (pd.read_csv(tmp_path / name) for name in ("one.csv", "two.csv"))
    pd.testing.assert_frame_equal(one, two, rtol=1e-6, atol=1e-6)
    capsys.readouterr()


@pytest.mark.parametrize("words", [["prune", "organism", "--keep", "0.5"], ["report", "organism"]])
def test_what_is_not_shared_is_refused(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    said = f"headtools {words[0]}: 2 processes share roles and importance; start this command once\n"
    assert capsys.readouterr().err == said
    assert not list(tmp_path.iterdir())


def test_run_keeps_roles_and_importance(tmp_path, capsys):
    for words in (["roles", "organism", *FEW], ["importance", "organism", *FEW, "--method", "relevance"]):
        given = [*words, "--run", str(tmp_path / words[0]), "--out", str(tmp_path / "out.csv")]
        assert main(given) == 0
        first = (tmp_path / "out.csv").read_bytes()
        assert [path.name for path in (tmp_path / words[0]).iterdir()] == ["batch-000000.safetensors"]
        assert main(given) == 0
        assert (tmp_path / "out.csv").read_bytes() == first
    assert main(["importance", "organism", *FEW, "--run", str(tmp_path / "roles")]) == 1
    assert "holds another run" in capsys.readouterr().err
    assert main(["importance", "organism", *FEW, "--method", "confidence", "--run", "x"]) == 1
    assert "leave --run out" in capsys.readouterr().err
