"""A report in HeadVis's format, read as Neuronpedia's loaders read it."""

import json
import re

import pytest
import torch
from course.test_report import ENGLISH, TOKENIZER, built

import headtools as ht

METRICS = ("self_attention_score", "prev_token_score", "pattern_entropy", "qk_distance", "qk_distance_variance")
METRICS += ("induction_score",)
REQUIRED = ("model_name", "dataset_name", "n_sequences", "seq_len", "dtype", "attn_implementation")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    model = built("Llama")
    found = ht.report(model, ENGLISH, TOKENIZER, orders=1, progress=False)
    folder = found.export_headvis(tmp_path_factory.mktemp("exports") / "run", "tiny/llama", "our/english")
    return model, found, folder


def read(path):
    return json.loads(path.read_text("utf-8"), parse_constant=lambda name: pytest.fail(f"{name} in {path}"))


def test_the_tree_is_the_specification_s(made):
    _, _, folder = made
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.json")}
    heads = {f"heads/L{layer}H{head}.json" for layer in range(2) for head in range(4)}
    assert files == heads | {"config.json", "scatter_data.json", "server_config.json", "attributions/manifest.json"}
    config = read(folder / "config.json")
    merged = {**config["pipeline_config"], **config}  # as the loaders do
    assert all(merged[key] is not None for key in REQUIRED)
    assert (config["n_layers"], config["n_heads"], len(config["heads"])) == (2, 4, 8)
    assert (config["model_name"], config["dataset_name"]) == ("tiny/llama", "our/english")
    assert set(config["metrics"]) == set(config["metric_descriptions"]) >= set(METRICS)
    assert re.sub(r"\{layer\}|\{head\}", "0", config["head_data_pattern"]) == "L0H0.json"


def test_numbers_and_maps_are_the_model_s(made):
    model, found, folder = made
    rows = read(folder / "scatter_data.json")
    assert [(row["layer"], row["head"]) for row in rows] == [(i // 4, i % 4) for i in range(8)]
    table = found.tables["importance"]
    for row, importance in zip(rows, table.gradient, strict=True):
        assert all(isinstance(row[name], float) for name in METRICS)
        assert row["importance"] == pytest.approx(importance, rel=1e-4)
    alone = sorted(ENGLISH[::2], key=lambda sentence: len(sentence.words))
    for row in rows:
        page = read(folder / "heads" / f"L{row['layer']}H{row['head']}.json")
        assert sorted(one["interval"] for one in page["sequences"]) == [1, 2, 3, 4, 5]
        for one in page["sequences"]:
            n = one["seq_len"]
            assert n == len(one["tokens"])
            batch = ht.label(model, TOKENIZER, [alone[one["sequence_id"]]])[0]
            with torch.no_grad(), ht.record(model) as seen:
                model(**batch)
            weights = seen["decoder", row["layer"]].maps[0, row["head"]].flatten()
            indices = torch.tensor(one["attention_indices"])
            assert torch.allclose(torch.tensor(one["attention_values"]), weights[indices], atol=0.003)
            assert all(int(i) // n >= int(i) % n for i in indices), "a key after its query"
            assert max(torch.bincount(indices // n)) <= 8
            inner = weights.view(n, n)[1:, 1:].max().item()
            assert one["max_activation"] == pytest.approx(inner, abs=0.003)
        total = sum(sum(one["attention_values"]) for one in page["sequences"])
        assert sum(page["qk_distance_histogram"]["bin_values"]) == pytest.approx(total, abs=0.01)
        assert sum(entry["weight"] for entry in page["top_key_tokens"]) == pytest.approx(total, abs=0.05)
        assert sum(page["histogram"]["bin_values"]) == page["statistics"]["n_samples"] == 5


def test_what_headvis_cannot_show_is_refused(made, tmp_path):
    _, found, folder = made
    with pytest.raises(FileExistsError, match="choose another folder"):
        found.export_headvis(folder, "m", "d")
    ids = torch.randint(5, 60, (6, 8), generator=torch.Generator().manual_seed(0))
    several = ht.report(built("T5"), {"input_ids": ids, "labels": ids}, orders=1, progress=False)
    with pytest.raises(ValueError, match="has cross, decoder, encoder"):
        several.export_headvis(tmp_path / "new", "m", "d")
    bare = ht.report(built("BERT"), ENGLISH[:6], orders=1, progress=False)
    with pytest.raises(ValueError, match="no maps to export"):
        bare.export_headvis(tmp_path / "new", "m", "d")
    assert not (tmp_path / "new").exists()
