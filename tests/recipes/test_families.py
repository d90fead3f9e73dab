"""The table of families and its page say the same, and families are still what the table says."""

import pytest

from headtools._engine.store import read_json
from headtools.organism.shipped import shipped
from recipes import families


def test_the_page_is_the_table():
    page = families.PAGE.read_text("utf-8")
    assert families.place(page, read_json(families.FILE, remedy="")) == page


def test_most_families_are_verified():
    frame = shipped("families")
    assert set(frame.result) <= set(families.RESULTS)
    assert (frame.result == "verified").sum() > 300
    assert frame.why[frame.result.isin(["fails", "refused", "not built"])].map(bool).all()
    assert set(shipped("families").attrs["versions"]) == {"headtools", "torch", "transformers"}
    latent = frame.set_index("class").loc[["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Gemma4ForCausalLM"]]
    assert (latent.result == "verified").all()


def test_a_crash_and_a_slow_family_leave_the_others(monkeypatch):
    monkeypatch.setattr(families, "SECONDS", 1)
    assert families.limited(lambda: {"result": 1}) == {"result": 1}
    assert families.limited(lambda: __import__("os")._exit(1)) is None
    assert families.limited(lambda: __import__("time").sleep(30)) is None


@pytest.mark.weekly
def test_some_families_again(tmp_path, capsys):
    names = ["bert", "llama", "t5", "bitnet", "wavlm", "deepseek_v3", "vit"]
    families.main(only=names, file=tmp_path / "families.json", page=tmp_path / "none.md")
    old = {(row["family"], row["task"]): row["result"] for row in read_json(families.FILE, remedy="")["rows"]}
    rows = read_json(tmp_path / "families.json", remedy="")["rows"]
    assert {row["family"] for row in rows} == set(names)
    assert all(row["result"] == old[row["family"], row["task"]] for row in rows)
