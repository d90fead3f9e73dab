"""The numbers of notebooks/scaling.md: from the models' own shapes, from what passes keep, from bounds of the benches.

`python tools/bench/scaling_page.py` prints the tables as they must stand on the page; a test compares them.
"""

from functools import cache

import relevance as relevance_bench
import taxonomy as taxonomy_bench
import torch
import transformers as tf

import headtools as ht
from headtools.importance._leave_one_out import LeaveOneOut
from headtools.roles.role import Frequencies, builtin_roles

CORE, CARD = 100e9, 400e12  # operations a second that the page assumes: one core, float32; one card of 80 GB, bfloat16
TEXTS, LENGTH = 10_000, 128  # the corpus that the page assumes
TIMES = 500  # replicas of the taxonomy's intervals
LLAMA = {"num_key_value_heads": 8, "vocab_size": 128256}
CARD_BYTES = 80e9
SHAPES = {
    "BERT-base": (tf.BertForMaskedLM, tf.BertConfig(), CORE, 4),
    "GPT-2 small": (tf.GPT2LMHeadModel, tf.GPT2Config(), CORE, 4),
    "8B": (
        tf.LlamaForCausalLM,
        tf.LlamaConfig(
            hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=14336, **LLAMA
        ),
        CARD,
        2,
    ),
    "70B": (
        tf.LlamaForCausalLM,
        tf.LlamaConfig(
            hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, intermediate_size=28672, **LLAMA
        ),
        CARD,
        2,
    ),
}


@cache
def shape(name: str) -> dict[str, float]:
    """Parameters, heads, layers, width, and operations of a forward pass a token; nothing is allocated."""
    make, config, rate, size = SHAPES[name]
    with torch.device("meta"):
        model = make(config)
    maps = [m.weight.numel() for m in model.modules() if isinstance(m, (torch.nn.Linear, tf.pytorch_utils.Conv1D))]
    found = ht.sites(model)
    width = config.hidden_size
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "heads": found.n_heads,
        "rate": rate,
        "layers": len(found),
        "width": width,
        "bytes": size,
        "forward": 2 * sum(maps) + 4 * len(found) * LENGTH * width,
    }


SMALL = {  # models of the large ones' proportions; the large Llamas have eight query heads to a key head
    tf.BertForMaskedLM: lambda layers: tf.BertConfig(
        hidden_size=128, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=512, vocab_size=64
    ),
    tf.GPT2LMHeadModel: lambda layers: tf.GPT2Config(
        n_embd=128, n_layer=layers, n_head=2, vocab_size=64, bos_token_id=None, eos_token_id=None
    ),
    tf.LlamaForCausalLM: lambda layers: tf.LlamaConfig(
        hidden_size=128,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=1,
        intermediate_size=448,
        vocab_size=64,
    ),
}


def tiny(make: type, layers: int, dtype: torch.dtype) -> tf.PreTrainedModel:
    """Return a model of these proportions."""
    torch.manual_seed(0)
    return make(SMALL[make](layers)).to(dtype).eval()


BATCH = {"input_ids": torch.arange(48).view(2, 24), "labels": torch.arange(48).view(2, 24)}


def for_gradient(make: type, layers: int, dtype: torch.dtype) -> float:
    """Bytes that the gradient's forward pass keeps for the way back, weights left out, by token and feature."""
    model, seen = tiny(make, layers, dtype), {}
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other takes its place
        return tensor

    ht.verify(model, BATCH)  # which gradient() would do now, and its passes are not to be counted
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ht.gradient(model, BATCH)
    return sum(size for size, _ in seen.values()) / BATCH["input_ids"].numel() / 128


def for_ablation(make: type, layers: int, dtype: torch.dtype) -> float:
    """Bytes that an ablation keeps of a batch, by token and feature."""
    model = tiny(make, layers, dtype)
    with torch.no_grad():
        runs = LeaveOneOut(model, BATCH, None, list(ht.sites(model)), "zero", {}, 0, "example", {"replays": True})
    kept = {}
    for _, output in runs.ended:
        for tensor in output if isinstance(output, tuple) else [output]:
            if isinstance(tensor, torch.Tensor):
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(kept.values()) / BATCH["input_ids"].numel() / 128


@cache
def a_layer(keeps, make: type, dtype: torch.dtype) -> float:
    """Bytes a layer, token and feature: what two more layers add, by two."""
    return (keeps(make, 4, dtype) - keeps(make, 2, dtype)) / 2


def kept_by(name: str) -> list[float]:
    """Bytes a token of a batch that the gradient and the ablation of a model keep."""
    s = shape(name)
    dtype = torch.float32 if s["bytes"] == 4 else torch.bfloat16
    return [a_layer(keeps, SHAPES[name][0], dtype) * s["layers"] * s["width"] for keeps in (for_gradient, for_ablation)]


@cache
def roles() -> int:
    """How many roles a decoder is scored for on the English treebank."""
    sentences = ht.corpus("english")
    return len(builtin_roles("decoder", dict.fromkeys(r for s in sentences for r in s.relations), Frequencies({})))


def said(seconds: float) -> str:
    """Return a time in the largest unit that it fills."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.{0 if seconds >= 9.5 * size else 1}f} {unit}"
    return f"{seconds:.0f} s"


def memory_rows() -> list[str]:
    """Return the rows of the table of what fits where."""
    rows = []
    for name in SHAPES:
        s = shape(name)
        kept = [some / 1e6 for some in kept_by(name)]
        replicas = TIMES * roles() * s["heads"] * 4 / 1e9
        rows.append(
            f"| {name} | {s['heads']:,} | {s['parameters'] / 1e9:.2f} | {s['parameters'] * 4 / 1e9:.1f} "
            f"| {s['parameters'] * 2 / 1e9:.1f} | {kept[0]:.1f} | {kept[1]:.2f} | {replicas:.2f} |"
        )
    return rows


def time_rows() -> list[str]:
    """Return the rows of the table of what takes how long."""
    rows = []
    for name in SHAPES:
        s = shape(name)
        forward = s["forward"] * TEXTS * LENGTH / s["rate"]
        lengths = (1, taxonomy_bench.BOUND, 2, 2 * relevance_bench.BOUNDS["attnlrp"], s["heads"] / 2)
        where = "a core" if s["rate"] == CORE else "a card"
        times_text = " | ".join(said(forward * times) for times in lengths)
        rows.append(f"| {name} | {where} | {s['forward'] / 1e9:.2f} | {times_text} |")
    return rows


def in_words() -> list[str]:
    """Numbers of the largest model that stand in sentences."""
    s = shape("70B")
    room = 2 * CARD_BYTES - s["parameters"] * 2
    rows = s["heads"] * TEXTS
    return [
        f"leave {room / 1e9:.0f} GB on two cards",
        f"{room / kept_by('70B')[0]:.0f} tokens at a time",
        f"{rows * 8 / 1e6:.0f} MB for ablation",
        f"{roles() * s['heads'] * 4 / 1e6:.1f} MB a sentence",
        f"{roles() * rows * 4 / 1e9:.0f} GB",
    ]


if __name__ == "__main__":
    print("\n".join([*memory_rows(), "", *time_rows(), f"{roles()} roles"]))
    for kind in (torch.bfloat16, torch.float32):
        print(kind, [a_layer(keeps, make, kind) for make in SMALL for keeps in (for_gradient, for_ablation)])
    print(in_words())
