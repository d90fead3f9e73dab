"""What others write comes back out of a notebook as it was, and is shown as text."""

import json

from headtools.course.claims import VERDICTS, Others, ledger_rows


def other(row, claim, verdict="wrong"):
    return {"row": row, "claim": claim, "source": "s", "cited": [verdict, "why"], "here": [verdict, "m"]}


def test_ledger_rows_come_back_from_a_notebook(tmp_path):
    rows = [
        other(row, f'<b>"{verdict}"</b> & é', verdict)
        for row, verdict in zip(("3.1", "0.14", "2.10a", "E1", "3.6"), VERDICTS, strict=True)
    ]
    made = [Others((row,))._repr_mimebundle_()["text/html"] for row in rows]
    outputs = [
        {"data": {"text/html": html if i % 2 else html.splitlines(keepends=True)}} for i, html in enumerate(made)
    ]
    cells = [{"cell_type": "markdown"}, {"outputs": [{"name": "stdout"}, *outputs[:2]]}, {"outputs": outputs[2:]}]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}), "utf-8")
    assert ledger_rows(path) == [
        {"row": row["row"], "claim": row["claim"], "source": "s", "measured": "m", "verdict": row["here"][0]}
        for row in rows
    ]
