"""Is every model family of transformers what headtools takes it for? ``python -m recipes.families [--only bert ...]``

Builds a tiny random model of every class that transformers' tables of tasks name, in a process of its own with limits
of time and size, and runs ``ht.sites`` and ``ht.verify`` on it. Nothing is downloaded. Result: ``families.json``, and
the table of ``notebooks/families.md`` between its two markers.
"""

import datetime
import importlib
import inspect
import multiprocessing
import multiprocessing.connection
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer
from torch import nn
from tqdm import tqdm
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import headtools as ht
from headtools.heads.verify import CHECKS
from recipes._results import ASSETS, read, replace_row, write

FILE = ASSETS / "families.json"
PAGE = Path(__file__).parents[1] / "notebooks" / "families.md"
BEGIN, END = "<!-- table: written by python -m recipes.families -->\n", "<!-- /table -->"
SECONDS, PARAMETERS = 60, 150_000_000
TASKS = {  # of several classes of one family and task the first is taken; a family of no other task by its base model
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "image and text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "speech": "MODEL_FOR_CTC_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}
EMPTY = {"family": "", "class": "", "task": "", "result": "not built", "why": "", "sites": 0, "heads": 0, "untried": []}
RESULTS = ("verified", "in part", "fails", "refused", "not tried", "not built")
LAYERS = 2
# Names of sizes in configurations, and what they become where a configuration has them.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "encoder_hidden_size"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "projection_dim", "output_hidden_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"), 2),
    **dict.fromkeys(("num_global_key_value_heads",), 1),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "d_inner", "ffn_dim", "hidden_dim", "n_inner", "ffn_hidden_size"), 40
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "expert_ffn_hidden_size"), 40),
    **dict.fromkeys(("shared_expert_intermediate_size", "intermediate_size_mlp", "d_embed"), 40),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth"), LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers", "decoder_num_layers"), LAYERS),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "v_head_dim", "attention_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim", "index_head_dim", "global_head_dim"), 8),
    **{
        "qk_head_dim": 16,
        "num_kv_shared_layers": 0,
        "entity_vocab_size": 96,
        "d_latents": 32,
        "attention_hidden_size": 32,
    },
    **{"use_cache": False, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_num_heads": 8, "n_mamba_heads": 2},
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input"), 96),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **{"image_size": 32, "patch_size": 8, "hidden_size_per_layer_input": 8, "sliding_window": 4, "window_size": 4},
}
SPECIAL = {  # what the names alone do not tell
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "deepseek_v3": {"n_group": 2, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 96, "pad_token_id": 0, "mask_token_id": 3},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lilt": {"channel_shrink_ratio": 1},
    "led": {"attention_window": [4, 4]},
    "longformer": {"attention_window": [4, 4]},
    "musicgen": {"dropout": 0.0},
    "nemotron3_5_transcribe_asr_audio": {"num_key_value_heads": 4},
    "nemotron3_diarization_audio": {"num_key_value_heads": 4},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds": False, "is_decoder": True},
    "xmod": {"default_language": "en_XX"},
}
ALWAYS = ("head_dim", "num_key_value_heads")  # left out, they are worked out from other sizes


def classes(only: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield (family, class, task): one class for each family and task, a base model where there is no other."""
    seen: set[str] = set()
    for task, table in TASKS.items():
        named = {
            family: names if isinstance(names, str) else names[0]
            for family, names in vars(modeling_auto)[table].items()
        }
        # a class that several families use (Llama's) is tried for the family that it is named after
        for family in sorted(
            named, key=lambda family: not named[family].lower().startswith(re.sub("[-_]", "", family))
        ):
            name = named[family]
            if name not in seen and (task != "base" or family not in seen):
                seen |= {name, family}
                if not only or family in only:
                    yield family, name, task


def shrink(config: transformers.PretrainedConfig, family: str) -> None:
    """Make a configuration small in place, and all inside it; lists with an entry a layer are cut."""
    special = SPECIAL.get(family, {})
    stored = {name.removeprefix("_"): value for name, value in vars(config).items()}
    layers = {value for name, value in stored.items() if SIZES.get(config.attribute_map.get(name, name)) is LAYERS}
    for name, value in stored.items():
        if isinstance(value, list) and len(value) in layers:
            kinds = list({str(entry): entry for entry in value}.values())  # a layer of each kind, where there are two
            setattr(config, name, (kinds[:LAYERS] * LAYERS)[:LAYERS])
    if "kv_lora_rank" in stored:  # latent attention has as many keys as queries
        special = {"num_key_value_heads": 4} | special
    for name, value in (SIZES | special).items():
        old = stored.get(config.attribute_map.get(name, name))
        if isinstance(old, list | tuple) and not isinstance(value, list):
            value = type(old)([value] * len(old))
        if old is not None or name in special or (name in ALWAYS and name in stored):
            with suppress(Exception):  # a property that is derived from others
                setattr(config, name, value)
    for rotary in (stored.get("rope_parameters"), stored.get("rope_scaling")):
        if isinstance(rotary, dict) and "mrope_section" in rotary:
            rotary["mrope_section"] = [2, 1, 1] if rotary.get("partial_rotary_factor", 1) == 1 else [1, 1, 0]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if stored.get(name) is not None:
            setattr(config, name, 0 if name == "pad_token_id" else 1)
    for name in getattr(config, "sub_configs", {}):
        if stored.get(name) is not None:
            shrink(stored[name], family)


def build(family: str, name: str) -> nn.Module:
    """Return a small model of a class, with weights large enough that heads differ."""
    config_class = CONFIG_MAPPING[family]
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    model_class = getattr(package, name, None) or getattr(transformers, name)
    config = (model_class.config_class or config_class)()  # the text model's, where a family has pictures as well
    shrink(config, family)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in model_class(config).parameters())
    if size > PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters are left")
    torch.manual_seed(0)
    model = model_class(config).eval()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return model


def batch_of(model: nn.Module) -> dict:
    """Return a short random batch: text, pictures or sound, as the model's forward pass has them."""
    draw = torch.Generator().manual_seed(0)
    config, names = model.config, inspect.signature(model.forward).parameters
    ids = torch.randint(5, 96, (2, 8), generator=draw)
    size = getattr(config, "image_size", 32)
    size = (size, size) if isinstance(size, int) else size
    mels = getattr(config, "num_mel_bins", None) or getattr(config, "feature_projection_input_dim", 80)
    shapes = {
        "pixel_values": (getattr(config, "num_channels", 3), *size),
        "input_values": (4000,),
        "input_features": (40, mels),
    }
    senses = {name: torch.randn(2, *shape, generator=draw) for name, shape in shapes.items() if name in names}
    if "input_ids" not in names:
        if not senses:
            raise ValueError(f"its forward pass takes {', '.join(list(names)[:3])}")
        return senses
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "bbox": torch.zeros(2, 8, 4, dtype=torch.long)}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids.flip(1)[:, :7]
    needed = {name: value for name, value in senses.items() if names[name].default is inspect.Parameter.empty}
    return {name: value for name, value in batch.items() if name in names} | needed


def sentence(error: Exception) -> str:
    """Return the first line of an error, short enough for a table, without machine paths."""
    text = re.sub(r"\s+", " ", f"{error}".strip().split("\n")[0]) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def tried(family: str, name: str, task: str) -> dict:
    """Return the row of one class."""
    row = {**EMPTY, "family": family, "class": name, "task": task}
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    try:
        model = build(family, name)
        batch = batch_of(model)
        with torch.no_grad():
            model(**batch)
    except Exception as error:
        return row | {"why": f"{type(error).__name__}: {sentence(error)}"}
    try:
        sites = ht.sites(model)
        row |= {"sites": len(sites), "heads": sites.n_heads}
        found = ht.verify(model, batch)
    except Exception as error:
        return row | {"result": "refused", "why": sentence(error)}
    checks = Counter(check for _, check in found.found)
    row["untried"] = [check for check in CHECKS if not checks[check]]
    failed = dict.fromkeys(f"{check}: {reason}" for (_, check), reason in found.failed.items())
    if failed:
        return row | {"result": "fails", "why": "; ".join(failed)}
    if found.unseen:
        return row | {"result": "in part", "why": f"attention that is no site: {', '.join(found.unseen[:2])}"}
    return row | {"result": "verified" if checks["sum"] or checks["kind"] else "not tried"}


def _send(pipe: multiprocessing.connection.Connection, of: Callable, *args: object) -> None:
    pipe.send(of(*args))


def limited(of: Callable[..., dict], *args: object) -> dict | None:
    """Return what a function returns in a process of its own; None where it crashes or takes too long."""
    context = multiprocessing.get_context("fork")  # transformers is imported once
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, of, *args))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(SECONDS) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def table(file: dict) -> str:
    """Return the counts and the table of the page."""
    rows, versions = file["rows"], ", ".join(f"{name} {number}" for name, number in file["versions"].items())
    count = Counter(row["result"] for row in rows)
    families = len({row["family"] for row in rows})
    total = ", ".join(f"{count[result]} {result}" for result in RESULTS if count[result])
    lines = [f"Tried on {file['date']} with {versions}: {len(rows)} classes of {families} families, {total}.\n"]
    lines += ["| family | class | result | sites | not tried | why |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (RESULTS.index(row["result"]), row["family"])):
        why = row["why"].replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        cells = row["family"], f"`{row['class']}`", row["result"], str(row["sites"] or ""), ", ".join(row["untried"])
        lines.append(f"| {' | '.join((*cells, why))} |")
    return "\n".join(lines) + "\n"


def place(page: str, file: dict) -> str:
    """Return the page with the table of these results between its markers."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(file) + END + rest.split(END)[1]


def main(only: Annotated[list[str] | None, typer.Option()] = None, file: Path = FILE, page: Path = PAGE) -> None:
    """Try the families, all or some, write file and page, and print what did not hold."""
    torch.set_num_threads(1)
    for warm in (("llama", "LlamaForCausalLM"), ("t5", "T5ForConditionalGeneration")):
        tried(*warm, "")  # what is imported late, every process would import again
    rows = read(file).get("rows", []) if only else []
    for family, name, task in tqdm([*classes(tuple(only or ()))]):
        row = limited(tried, family, name, task)
        row = row or {**EMPTY, "family": family, "class": name, "task": task, "why": f"no answer in {SECONDS} seconds"}
        rows = replace_row(rows, row, key=lambda row: (row["family"], row["task"]))
        if row["result"] in ("fails", "not tried"):
            print(f"{row['family']} {row['class']} {row['result']}: {row['why']}")
    versions = {package: version(package) for package in ("headtools", "torch", "transformers")}
    results = {"date": datetime.date.today().isoformat(), "versions": versions, "rows": rows}
    write(results, file, row_key="family")
    if page.exists():
        page.write_text(place(page.read_text("utf-8"), results), encoding="utf-8")
    print(Counter(row["result"] for row in rows))


if __name__ == "__main__":
    typer.run(main)
