"""Store what transformers 4.57 says of head masks and of prune_heads, which later versions do not have any more.

    python tests/heads/references/make.py

Needs transformers 4.57 (``pip install "transformers==4.57.*"`` in an environment of its own) and torch. Writes one
JSON file beside this one: for each model and example the slope of a loss with every head's mask, at 1, and the logits
after ``prune_heads``. ``test_references.py`` compares headtools with it and needs nothing but the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

from subjects import CAN_PRUNE, KINDS, PRUNED, losses, scores, subject  # isort: skip

OUT = Path(__file__).with_name("transformers_4_57.json")


def numbers(values: torch.Tensor) -> list:
    """Nested lists with nine digits."""
    return [numbers(v) for v in values] if values.dim() else float(f"{values:.9g}")


def gradients(name: str) -> dict[str, list]:
    """For each kind of attention the slopes (B, layers, heads), by head masks."""
    model, batch = subject(name)
    masks = {mask: torch.ones(2, 4, requires_grad=True) for mask in KINDS[name].values()}
    rows = [
        torch.autograd.grad(loss, list(masks.values()), retain_graph=True) for loss in losses(model, batch, **masks)
    ]
    return {kind: numbers(torch.stack(parts)) for kind, parts in zip(KINDS[name], zip(*rows, strict=True), strict=True)}


def pruned(name: str) -> list:
    """The logits without the heads of ``PRUNED``, in T5 those of the encoder."""
    model, batch = subject(name)
    if name == "t5":  # the model's own method fails; each attention has one that works
        for layer, heads in PRUNED.items():
            model.encoder.block[layer].layer[0].SelfAttention.prune_heads(heads)
    else:
        model.prune_heads({layer: list(heads) for layer, heads in PRUNED.items()})
    with torch.no_grad():
        return numbers(scores(model, batch))


def main() -> int:
    """Compute everything and write the file."""
    if not transformers.__version__.startswith("4.57."):
        print(f"transformers {transformers.__version__} is here, 4.57 is needed", file=sys.stderr)
        return 1
    found = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    found["gradients"] = {name: gradients(name) for name in KINDS}
    found["pruned"] = {name: pruned(name) for name in CAN_PRUNE}
    OUT.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
