"""Two seconds that tell whether headtools works here: ``ablate`` changes a model's output, ``head_mask`` does not.

Prints one line and exits with 0, or says what is wrong and exits with 1. Needs no network and no file.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the canary and give the exit status."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import headtools as ht

    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 50, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)).eval()
    tokens = torch.arange(8)[None]
    site = next(iter(ht.sites(model)))
    with torch.no_grad():
        plain = model(tokens).logits
        try:
            masked = model(tokens, head_mask=torch.zeros(2, 4)).logits
        except TypeError:
            masked = plain  # refused in words: as good as without effect
        with ht.ablate(model, [(*site.key, 0)]):
            ablated = model(tokens).logits
        after = model(tokens).logits
    wrong = []
    if torch.equal(plain, ablated):
        wrong.append("ablate() changed nothing")
    if not torch.equal(plain, after):
        wrong.append("the model was not restored after ablate()")
    if not torch.equal(plain, masked):
        wrong.append("head_mask has an effect again: lesson 00 must be rewritten")
    print("; ".join(wrong) or f"headtools {ht.__version__} works with torch {torch.__version__}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
