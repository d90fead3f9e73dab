"""The results that are kept agree with each other and with the page of benchmarks, and say what they must."""

import json

import comparison
import pytest
import results
import run


@pytest.fixture(scope="module")
def kept() -> dict:
    return results.read()


def test_every_row_names_its_bound_and_its_spread(kept: dict):
    assert kept["sections"], "make bench has never been run"
    for name, section in kept["sections"].items():
        assert name in (*run.SCRIPTS, run.COMPARISON)
        assert section["date"]
        assert {"torch", "transformers"} <= section["versions"].keys()
        for row in section["rows"]:
            if "said" in row:
                assert row["said"]
                continue
            assert row["why"], row
            assert row["low"] <= row["ratio"] <= row["high"]
            assert row["counted"] is None or row["counted"] > 0


def test_the_markdown_and_the_page_are_written_from_the_json(kept: dict):
    assert results.MARKDOWN.read_text(encoding="utf-8") == results.markdown(kept)
    page = results.PAGE.read_text(encoding="utf-8")
    table = page.split(results.BEGIN)[1].split(results.END)[0]
    assert table == results.short(kept)
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(rows) <= results.LIMIT
    assert all(line.split("|")[2].strip() for line in rows), "a row without its count"


def test_what_agrees_and_what_does_not(kept: dict):
    """A comparison of different numbers would be none."""
    rows = [row for row in kept["sections"]["comparison"]["rows"] if row.get("difference") is not None]
    assert rows
    for row in rows:
        exact = row["work"] == "leave-one-out"  # differences of losses near 7, in single precision
        assert row["difference"] < (2e-3 if exact else 1e-5), (row["peer"], row["kind"], row["work"])


def made(**changes: object) -> dict:
    row = {
        "peer": "captum",
        "kind": "bert",
        "model": "BERT-base, 12 layers",
        "version": "0.9.0",
        "work": "gradient",
        "counted": 1.99,
        "why": "because",
        "ratio": 1.0,
        "low": 0.9,
        "high": 1.1,
        "ours_ratio": 2.0,
        "ours_low": 1.9,
        "ours_high": 2.1,
        "peer_ratio": 3.0,
        "peer_low": 2.5,
        "peer_high": 3.5,
        "ours_s": 1.0,
        "peer_s": 1.5,
        "difference": 1e-7,
        "rounds": 3,
    }
    return {**row, **changes}


def of(*rows: dict) -> dict:
    versions = {"torch": "2", "transformers": "5"}
    return {"sections": {"comparison": {"date": "2026-01-01", "cpu": "a chip", "versions": versions, "rows": rows}}}


def test_the_short_table_tells_numbers_refusals_and_what_is_not_installed():
    gone = {"peer": "lxt", "kind": "bert", "model": "m", "work": "all", "said": "not installed"}
    never = {"peer": "captum", "kind": "marian", "model": "m", "work": "all", "said": "no map"}
    no = {**made(work="relevance", kind="gpt2"), "said": "TypeError: no rule"}
    table = results.short(of(made(), no, gone, never))
    assert "| gradient importance | 1.99, –, – | **headtools** | 2.00 ± 0.10 |  |  |" in table
    assert "| gradient importance | 1.99, –, – | captum 0.9.0 | 3.00 ± 0.50 |  | refuses |" in table
    assert "| captum 0.9.0 |  | refuses | refuses |" in table
    assert "not measured: lxt" in table
    full = comparison.markdown([made(), no, gone])
    assert "cannot: TypeError: no rule" in full
    assert "1.50" in full


def test_a_section_replaces_its_last_one_only(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "JSON", tmp_path / "results.json")
    monkeypatch.setattr(results, "MARKDOWN", tmp_path / "results.md")
    monkeypatch.setattr(results, "PAGE", tmp_path / "benchmarks.md")
    results.PAGE.write_text(f"a\n{results.BEGIN}{results.END}\nb\n")
    found = of(made())
    results.save(found)
    found["sections"]["gates"] = run.section([])
    results.save(found)
    assert list(json.loads(results.JSON.read_text())["sections"]) == ["comparison", "gates"]
    assert "captum 0.9.0" in results.PAGE.read_text()
    assert results.PAGE.read_text().endswith("\nb\n")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["benchmarks.md", "results.json", "results.md"]
