"""The heads of a report in the format of HeadVis (Luger, Kamath et al. 2026), which its frontend and Neuronpedia read.

A folder: ``config.json``; ``scatter_data.json``, a row of numbers for each head; ``heads/L0H0.json``, a head's examples
with its weights as (query * length + key, weight) pairs, and sums over them; and files that say there is no server. The
specification is that of Neuronpedia's pipeline (github.com/hijohnnylin/neuronpedia, neuronpedia_utils/headvis).
"""

from __future__ import annotations

import base64
import bisect
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headtools._engine.store import atomic_folder

METRICS = {  # HeadVis's names, what the report calls them, and what they are
    "self_attention_score": ("own position", "Mean attention of a query to its own position."),
    "prev_token_score": ("previous token", "Mean attention to the token before."),
    "pattern_entropy": ("entropy (nats)", "Mean entropy of a row of the map, in nats."),
    "qk_distance": ("distance", "Mean distance from query to key, weighted by attention."),
    "qk_distance_variance": ("variance of distance", "Variance of the distance, weighted by attention."),
    "induction_score": ("induction", "Attention to the token after an earlier copy, on repeated random tokens."),
    "importance": ("importance", "Mean of |dL/dgate| over examples (headtools)."),
    "cost": ("cost", "Rise of the loss when the head is switched off (headtools)."),
}
SMALLEST, PER_ROW, N_TOKENS = 0.005, 8, 50  # weights, keys of a query and tokens that are kept
EDGES = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
BINS = 50


def export(data: Mapping[str, Any], folder: str | Path, model_name: str, dataset_name: str) -> Path:
    """Write the folder, whole or not at all; see ``Report.export_headvis``."""
    heads = data.get("heads", [])
    groups = {head["group"] for head in heads}
    if len(groups) != 1:
        raise ValueError(
            f"HeadVis shows one kind of attention and this report has {', '.join(sorted(groups)) or 'none'}"
        )
    if not any(example["map"] for head in heads for example in head["examples"]):
        raise ValueError(
            'this report has no maps to export; make it of sentences: report(model, corpus("english"), ...)'
        )
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists; choose another folder, since a report is written whole")
    measured = {name: words for name, (ours, words) in METRICS.items() if any(ours in head["scores"] for head in heads)}
    pages = {f"L{head['layer']}H{head['head']}.json": _page(head, data["texts"]) for head in heads}
    longest = max(len(example["tokens"]) for page in pages.values() for example in page["sequences"])
    names = {"model_name": model_name, "dataset_name": dataset_name}
    run = {
        **names,
        "n_sequences": len(data["texts"]),
        "seq_len": longest,
        "dtype": "float32",
        "attn_implementation": "eager",
        "pipeline": f"headtools {version('headtools')}",
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    config = {
        **names,
        "heads": [[head["layer"], head["head"]] for head in heads],
        "n_layers": 1 + max(head["layer"] for head in heads),
        "n_heads": 1 + max(head["head"] for head in heads),
        "n_intervals": max(len(head["examples"]) for head in heads),
        "metrics": list(measured),
        "metric_descriptions": measured,
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [
            {"key": "qk_distance_histogram", "label": "Q-K distance"},
            {"key": "histogram", "label": "Activation distribution"},
        ],
        "custom_tables": [
            {"key": "top_query_tokens", "label": "Top query tokens"},
            {"key": "top_key_tokens", "label": "Top key tokens"},
        ],
        "statistics_display": {
            "n_samples": {"label": "Samples kept", "format": "default"},
            "mean_max_activation": {"label": "Mean max activation", "format": "default"},
        },
        "pipeline_config": run,
    }
    scatter = [
        {"layer": head["layer"], "head": head["head"]}
        | {name: head["scores"].get(METRICS[name][0], [None])[0] for name in measured}
        for head in heads
    ]
    with atomic_folder(folder) as new:
        files = {"config.json": config, "scatter_data.json": scatter, "server_config.json": {}}
        files |= {"attributions/manifest.json": {}} | {f"heads/{name}": page for name, page in pages.items()}
        for name, content in files.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    return folder


def _page(head: Mapping[str, Any], texts: list) -> dict[str, Any]:
    """Return the file of one head. Interval 1 holds the examples in which it is worth least."""
    sequences = []
    for place, example in enumerate(head["examples"]):
        if not example["map"]:
            continue
        tokens = texts[example["example"]].get("input_ids") or [str(i) for i in range(example["keys"])]
        pairs = _pairs(example)
        # HeadVis leaves out the first token, on which most heads rest.
        largest = max((weight for i, weight in pairs if min(divmod(i, example["keys"]))), default=0.0)
        sequences.append(
            {
                "sequence_id": example["example"],
                "interval": len(head["examples"]) - place,
                "tokens": tokens,
                "attention_indices": [i for i, _ in pairs],
                "attention_values": [weight for _, weight in pairs],
                "seq_len": example["keys"],
                "max_activation": round(largest, 4),
            }
        )
    distances, counts = [0.0] * (len(EDGES) - 1), [0] * BINS
    by_token: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for one in sequences:
        counts[min(BINS - 1, int(one["max_activation"] * BINS))] += 1
        for i, weight in zip(one["attention_indices"], one["attention_values"], strict=True):
            query, key = divmod(i, one["seq_len"])
            distances[bisect.bisect_right(EDGES, abs(query - key)) - 1] += weight
            for side, at in zip(by_token, (query, key), strict=True):
                side[one["tokens"][at]] = side.get(one["tokens"][at], 0.0) + weight
    top = [
        [{"token": token, "weight": round(weight, 4)} for token, weight in sorted(of.items(), key=lambda x: -x[1])]
        for of in by_token
    ]
    mean = sum(one["max_activation"] for one in sequences) / len(sequences) if sequences else None
    return {
        "sequences": sequences,
        "qk_distance_histogram": {"bin_edges": EDGES, "bin_values": [round(value, 4) for value in distances]},
        "top_query_tokens": top[0][:N_TOKENS],
        "top_key_tokens": top[1][:N_TOKENS],
        "histogram": {"bin_edges": [round(i / BINS, 4) for i in range(BINS + 1)], "bin_values": counts},
        "statistics": {"n_samples": len(sequences), "mean_max_activation": None if mean is None else round(mean, 4)},
    }


def _pairs(example: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return the largest weights of each query as (query * keys + key, weight), by index."""
    levels, n = base64.b64decode(example["map"]), example["keys"]
    kept = []
    for query in range(example["queries"]):
        row = sorted(range(query * n, query * n + n), key=lambda i: -levels[i])[:PER_ROW]
        kept += sorted((i, round(levels[i] / 255 * example["top"], 4)) for i in row)
    return [(i, weight) for i, weight in kept if weight >= SMALLEST]
