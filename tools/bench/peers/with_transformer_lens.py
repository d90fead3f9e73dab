"""TransformerLens: ``run_with_cache``, gradient times activation at every ``hook_z``, ``run_with_hooks``."""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable

import common
import subjects
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

KINDS = {"encoder_blocks": "encoder", "self_attn": "decoder", "cross_attn": "cross"}


def spelt(token: int) -> str:
    """A token as a word; none begins another, or marks would be found inside of words.

    >>> spelt(7)
    'w007'
    """
    return f"w{token:03}"


def bridge(model: torch.nn.Module) -> object:
    """The model in TransformerLens' hands; it wants a folder with a configuration and a tokenizer beside the model."""
    from transformer_lens.model_bridge import TransformerBridge

    words = {spelt(n): n for n in range(subjects.VOCABULARY)}
    marks = {f"{name}_token": spelt(n) for n, name in enumerate(("pad", "unk", "bos", "eos", "cls", "sep", "mask"))}
    with tempfile.TemporaryDirectory() as folder:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        made = Tokenizer(models.WordLevel(words, unk_token=spelt(1)))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        transformers.PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        lens = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=tokenizer)
    lens.cfg.default_prepend_bos = False  # texts are the batch, token for token
    return lens


def key_of(name: str, kind: str) -> tuple[str, int]:
    """Kind and layer of a hook.

    >>> key_of("decoder_blocks.2.cross_attn.hook_z", "marian"), key_of("blocks.3.attn.hook_z", "gpt2")
    (('cross', 2), ('decoder', 3))
    """
    layer = int(re.search(r"\d+", name).group())
    if kind != "marian":
        return ("decoder" if kind == "gpt2" else "encoder"), layer
    return next(found for part, found in KINDS.items() if part in name), layer


def works(kind: str, size: str) -> dict[str, Callable]:
    """What a user of TransformerLens would write for the same numbers."""
    subject = common.subject(kind, size)
    few, lens = subject.part(common.EXACT_ROWS), bridge(copy.deepcopy(subject.model))
    of_z = [name for name in lens.hook_dict if name.endswith("hook_z")]
    of_maps = [name for name in lens.hook_dict if name.endswith("hook_pattern")]

    def inputs(some: subjects.Subject) -> tuple[tuple, dict]:
        more = {"decoder_input": some.batch["decoder_input_ids"]} if kind == "marian" else {}
        return (some.batch["input_ids"],), more

    def run(some: subjects.Subject, hooks: list[tuple]) -> Tensor:
        args, more = inputs(some)
        return subjects.loss(lens.run_with_hooks(*args, fwd_hooks=hooks, **more), some.labels)

    def gradient() -> dict:
        kept, slopes = {}, {}

        def into(store: dict, name: str) -> Callable:
            def hook(value: Tensor, hook: object) -> None:
                store[name] = value.detach()

            return hook

        args, more = inputs(subject)
        ways = [(n, into(kept, n)) for n in of_z], [(n, into(slopes, n)) for n in of_z]
        with lens.hooks(fwd_hooks=ways[0], bwd_hooks=ways[1]):
            subjects.loss(lens(*args, **more), subject.labels).sum().backward()
        lens.zero_grad(set_to_none=True)
        products = {name: (z * slopes[name]).sum((1, 3)) for name, z in kept.items()}
        return common.by_head((*key_of(n, kind), p.abs().mean(0)) for n, p in products.items())

    @torch.no_grad()
    def ablation() -> tuple[dict, float]:
        base, names = run(few, []), {key_of(name, kind): name for name in of_z}

        def rises(which: str, layer: int, head: int) -> Tensor:
            def off(z: Tensor, hook: object) -> Tensor:
                z = z.clone()
                z[:, :, head] = 0
                return z

            return run(few, [(names[which, layer], off)]) - base

        return common.exact(rises, subject, kind)

    @torch.no_grad()
    def maps() -> dict:
        args, more = inputs(subject)
        _, cache = lens.run_with_cache(*args, names_filter=of_maps, **more)
        return common.last_weights((*key_of(n, kind), cache[n]) for n in of_maps)

    def previous() -> dict:
        from transformer_lens.head_detector import detect_head

        texts = [" ".join(map(spelt, row)) for row in subject.batch["input_ids"].tolist()]
        which = "encoder" if kind == "bert" else "decoder"
        rows = detect_head(lens, texts, "previous_token_head")
        return common.by_head((which, n, row) for n, row in enumerate(rows))

    return {
        "plain": lambda: common.logits(subject.model, subject),
        "plain, 2 rows": lambda: common.logits(subject.model, few),
        "gradient": gradient,
        "leave-one-out": ablation,
        "maps": maps,
        "previous token": previous,
    }
