"""The peak that TransformerLens' maps of one long text add, in MB: ``run_with_cache``, every ``hook_pattern`` kept.

python tools/bench/peers/long_with_transformer_lens.py '["BERT-base", 2048]'      # with the interpreter of .venv-peers
"""

from __future__ import annotations

import json
import resource
import sys

import long_texts
import subjects
import torch
import transformers
import with_transformer_lens


def main() -> None:
    """Measure once, after a short pass of the same kind, as ``long_texts.peak`` does."""
    shape, tokens = json.loads(sys.argv[-1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # The bridge wants a model with a head for words, and a vocabulary that its tokenizer has.
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": tokens, "vocab_size": subjects.VOCABULARY}
    if shape == "SmolLM2":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**long_texts.SMOL, **sizes)).eval()
    else:
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
    lens = with_transformer_lens.bridge(model)
    ids = torch.randint(8, 60, (1, tokens))

    def run(some: torch.Tensor) -> object:
        with torch.no_grad():
            return lens.run_with_cache(some, names_filter=lambda name: name.endswith("hook_pattern"))

    run(ids[:, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, kept = run(ids)
    assert [tuple(kept[name].shape[2:]) for name in kept] == [(tokens, tokens)] * 2
    print(f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:,.0f}")


if __name__ == "__main__":
    main()
