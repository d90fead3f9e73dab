"""Look for a silent wrong number where nobody has looked: ``python -m recipes.hunt --seconds 3600 [--seed 1]``

Draws a class of transformers at random, of all that :mod:`recipes.families` can build, and then its configuration:
numbers of heads, of key-value heads and of layers, widths that need not fit one another, switches that are off by
default. The batch is padded, on the left or on the right. What headtools says is held against definitions that know
nothing of it: a head's output is a slice of what its output projection reads, found with a plain hook.

Every draw ends in one of these ways: ``equal``, ``refused`` (with the sentence), ``not built`` (transformers does not
take the configuration), ``fails`` (``ht.verify`` names what does not hold), ``nothing`` (no layer could be compared),
``stops`` (an error that is no refusal), ``different``. The last two are defects of headtools.
"""

import random
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import headtools as ht
from recipes import families
from recipes._results import write

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "encoder_hidden_size")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
HEAD_WIDTHS = ("head_dim", "d_kv", "d_head")
NEVER = ("use_cache", "output_", "return_dict", "is_decoder", "is_encoder_decoder", "torchscript", "tie_", "gradient_")
KINDS = ("equal", "refused", "not built", "fails", "nothing", "stops", "different")
PRECISIONS = {torch.float64: 1e-6, torch.float32: 2e-4}  # and how far two ways may be apart, of the largest logit


def vary(config: transformers.PretrainedConfig, dice: random.Random) -> list[str]:
    """Change a small configuration at random, in place, and all inside it; return what was set, as text."""
    heads = dice.choice((2, 3, 4, 6))
    width = dice.choice((4, 8, 16))
    sizes = dict.fromkeys(HEADS, heads) | dict.fromkeys(WIDTHS, heads * width)
    sizes |= dict.fromkeys(GROUPS, dice.choice([n for n in (1, 2, 3, heads) if heads % n == 0]))
    sizes |= dict.fromkeys(LAYERS, dice.choice((1, 2, 3)))
    if dice.random() < 0.3:  # heads that do not divide the width
        sizes |= dict.fromkeys(HEAD_WIDTHS, dice.choice((4, 6, 8)))
    stored = {name.removeprefix("_"): value for name, value in vars(config).items()}
    said = []
    for name, value in stored.items():
        new = sizes.get(name, value)
        if isinstance(value, bool) and not name.startswith(NEVER) and dice.random() < 0.2:
            new = not value
        if new != value and not isinstance(value, list | tuple | dict):
            with suppress(Exception):  # a property that is derived from others
                setattr(config, name, new)
                said.append(f"{name}={new}")
    for name in getattr(config, "sub_configs", {}):
        if stored.get(name) is not None:
            said += vary(stored[name], dice)
    return said


def padded(batch: dict[str, Tensor], dice: random.Random) -> dict[str, Tensor]:
    """Return the batch with its second text shorter, padded on a side at random."""
    mask = batch.get("attention_mask")
    if mask is None or mask.shape != batch["input_ids"].shape or dice.random() < 0.3:
        return batch
    gone = slice(0, 3) if dice.random() < 0.5 else slice(-3, None)
    mask, ids = mask.clone(), batch["input_ids"].clone()
    mask[1, gone], ids[1, gone] = 0, 0
    return batch | {"attention_mask": mask, "input_ids": ids}


def logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the first tensor that a model gives, of real tokens only: what padding gets is nobody's."""
    with torch.no_grad():
        out = model(**batch)
    found = (out.logits if "logits" in out else out[0]).double()
    mask = batch.get("attention_mask")
    return found[mask.bool()] if mask is not None and found.shape[:2] == mask.shape else found


def without(site: ht.Site, head: int, value: float) -> torch.utils.hooks.RemovableHandle:
    """Multiply one head's slice of what its output projection reads by a number, with a plain hook."""
    width = site.value_dim

    def scale(module: nn.Module, args: tuple) -> tuple:
        z = args[0].clone()
        z[..., head * width : (head + 1) * width] *= value
        return (z, *args[1:])

    return site.out.register_forward_pre_hook(scale)


def compared(model: nn.Module, batch: dict[str, Tensor], sites: ht.Sites, dice: random.Random, close: float) -> str:
    """Return what differs between headtools and plain hooks, '' where nothing does.

    Raises ``LookupError`` where none of the layers ran in a way that a plain hook can follow.
    """
    whole = logits(model, batch)
    close = close * whole.abs().max().clamp_min(1e-9)

    def apart(ours: Tensor, plain: Tensor, by: float | Tensor) -> bool:
        return not (ours - plain).abs().max() <= by  # NaN is apart as well

    with ht.record(model, want="maps"):  # eager attention in the place of the model's own
        if apart(logits(model, batch), whole, close):
            return "the output while maps are recorded"
    with ht.record(model, want="z") as seen:
        if apart(logits(model, batch), whole, 0):
            return "the output while z is recorded"
    tried = 0
    for site in dice.sample(list(sites), len(sites)):
        read: list[Tensor] = []
        hook = site.out.register_forward_pre_hook(lambda module, args, read=read: read.append(args[0].detach()))
        logits(model, batch)
        hook.remove()
        if site.key not in seen or len(read) != 1 or tried == 3:
            continue
        tried += 1
        head, z = dice.randrange(site.heads), seen[site.key].z
        there = (read[0].transpose(0, 1) if site.tokens_first else read[0]).flatten()
        if len(there) != z.numel() or not torch.allclose(there, z.flatten(), rtol=0, atol=0, equal_nan=True):
            return f"z of {site.key}"
        gate = torch.ones(site.heads, dtype=z.dtype)
        gate[head] = 0.3
        for name, value, context in (
            ("ablate", 0.0, ht.ablate(model, {site.key: [head]})),
            ("gates", 0.3, ht.gates(model, {site.key: gate})),
        ):
            handle = without(site, head, value)
            plain = logits(model, batch)
            handle.remove()
            with context:
                ours = logits(model, batch)
            if apart(ours, plain, close):
                return f"{name} of {site.key}, head {head}: {(ours - plain).abs().max():.1e}"
        if not torch.equal(logits(model, batch), whole):
            return f"the model after {site.key}"
    if not tried:
        raise LookupError("no layer ran once")
    return ""


def drawn(family: str, name: str, seed: int) -> dict:
    """Return how one draw ended: {family, class, seed, set, end, why}."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    dice = random.Random(f"{family} {name} {seed}")
    row = {"family": family, "class": name, "seed": seed, "set": "", "end": "not built", "why": ""}
    try:
        made: list[str] = []
        small = families.shrink

        def shrink_and_vary(config: transformers.PretrainedConfig, family: str) -> None:
            small(config, family)
            made.extend(vary(config, dice))

        families.shrink = shrink_and_vary
        try:
            model = families.build(family, name)
        finally:
            families.shrink = small
        precision = dice.choice(list(PRECISIONS))
        model = model.to(precision)
        batch = padded(families.batch_of(model), dice)
        batch = {key: value.to(precision) if value.is_floating_point() else value for key, value in batch.items()}
        row["set"] = ", ".join([*dict.fromkeys(made), str(precision).removeprefix("torch.")])
        if not logits(model, batch).isfinite().all():
            return row | {"why": "its output is not finite"}
        if not torch.equal(logits(model, batch), logits(model, batch)):
            return row | {"why": "two passes differ"}
    except Exception as error:
        return row | {"why": f"{type(error).__name__}: {families.sentence(error)}"}
    try:
        sites = ht.sites(model)
        found = ht.verify(model, batch)
        if found.failed:
            said = dict.fromkeys(f"{check}: {why}" for (_, check), why in found.failed.items())
            return row | {"end": "fails", "why": "; ".join(said)}
    except (ValueError, TypeError, NotImplementedError) as error:
        return row | {"end": "refused", "why": families.sentence(error)}
    except Exception as error:
        return row | {"end": "stops", "why": f"{type(error).__name__}: {families.sentence(error)}"}
    try:
        wrong = compared(model, batch, sites, dice, PRECISIONS[precision])
    except LookupError as error:
        return row | {"end": "nothing", "why": families.sentence(error)}
    except (ValueError, NotImplementedError) as error:
        return row | {"end": "refused", "why": families.sentence(error)}
    except Exception as error:
        return row | {"end": "stops", "why": f"{type(error).__name__}: {families.sentence(error)}"}
    return row | {"end": "different" if wrong else "equal", "why": wrong}


def main(
    seconds: float = 3600,
    seed: int = 1,
    only: Annotated[list[str] | None, typer.Option()] = None,
    file: Path | None = None,
) -> None:
    """Draw until the time is over; print what failed or differed, and the counts."""
    torch.set_num_threads(1)
    dice, end, rows = random.Random(seed), time.monotonic() + seconds, []
    named = [(family, name) for family, name, _ in families.classes(tuple(only or ())) if family in CONFIG_MAPPING]
    families.tried("llama", "LlamaForCausalLM", "")  # what is imported late, every process would import again
    while time.monotonic() < end:
        family, name = dice.choice(named)
        number = dice.randrange(1_000_000)
        silent = {"family": family, "class": name, "seed": number, "set": "", "end": "not built", "why": "no answer"}
        row = families.limited(drawn, family, name, number) or silent
        rows.append(row)
        if row["end"] in ("fails", "stops", "different"):
            print(f"{row['end']}: {name}, seed {number} ({row['set']}): {row['why']}", flush=True)
    count = Counter(row["end"] for row in rows)
    built = {row["class"] for row in rows if row["end"] != "not built"}
    print(f"{len(rows)} draws, {len(built)} classes built: " + ", ".join(f"{count[kind]} {kind}" for kind in KINDS))
    if file:
        write({"seed": seed, "rows": rows}, file, row_key="class")


if __name__ == "__main__":
    typer.run(main)
