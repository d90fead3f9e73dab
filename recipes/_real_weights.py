"""Tables of a causal language model for lessons 01 and 02: three heads on one sentence, attention layers computed anew,
and what the weights of each head say of the directions and the words that it carries.

``python -m recipes.measure_real --model smollm2 --only circuits``
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools import geometry
from headtools.roles._segments import ordinary_tokens
from headtools.roles.induction import INDUCTION, induction_scores
from recipes._results import interval

Table = tuple[list[dict[str, Any]], str]  # rows, and what they are
SENTENCE = "Anna met Bartholomew Quill, and Bartholomew Quill waved."


@torch.no_grad()
def three_heads(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Keep the maps of the best previous-token head, the best induction head, and of one that shares its keys."""
    frame = induction_scores(model, n=sizes["induction sequences"], length=sizes["segment"], batch_size=10)
    best = {role: rows.loc[rows.score.idxmax()] for role, rows in frame.groupby("role")}
    ids = tokenizer(SENTENCE, return_tensors="pt").input_ids
    with ht.record(model, want="maps") as r:
        model(input_ids=ids)

    def row(name: str, layer: int, head: int) -> dict[str, Any]:
        weights = r["decoder", layer].maps[0, head].double()
        return {
            "name": name,
            "layer": layer,
            "head": head,
            "weights": [[round(w, 3) for w in line] for line in weights.tolist()],
            "tokens": [tokenizer.decode([i]).strip() for i in ids[0].tolist()],
        }

    previous, induction = ((int(best[role].layer), int(best[role]["head"])) for role in ("previous-token", INDUCTION))
    layer, head = induction
    site = ht.sites(model)["decoder", layer]
    shared = site.heads // site.kv_heads  # neighbouring query heads that have one key head
    others = [h for h in range(head - head % shared, head - head % shared + shared) if h != head]
    resting = max(others, key=lambda h: r["decoder", layer].maps[0, h, 1:, 0].mean().item())
    rows = [row("previous token", *previous), row("induction", *induction), row("first token", layer, resting)]
    return rows, (
        f"attention maps (query, key) on {SENTENCE!r}: of the head with the highest previous-token score, of the head "
        "with the highest induction score, and, of those that share its keys and values, of the one with most weight "
        "on the first token; the scores as in the table heads"
    )


class GroupedAttention(nn.Module):
    """An attention layer of a Llama, written out: lesson 01 builds the same."""

    def __init__(self, width: int, heads: int, kv_heads: int, d_k: int):
        super().__init__()
        self.d_k = d_k
        self.q_proj = nn.Linear(width, heads * d_k, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * d_k, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * d_k, bias=False)
        self.o_proj = nn.Linear(heads * d_k, width, bias=False)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return what the layer adds to each token (B, T, width), given the rotations of the positions (B, T, d_k)."""

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)

        def rotated(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

        queries, keys = rotated(split(self.q_proj(tokens))), rotated(split(self.k_proj(tokens)))
        shared = queries.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(shared, 1) for x in (keys, split(self.v_proj(tokens))))
        scores = queries @ keys.mT / math.sqrt(self.d_k)
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        return self.o_proj((weights @ values).transpose(1, 2).flatten(2))


@torch.no_grad()
def own_layers(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Load each attention layer's weights into a layer written out, and compare what the two return."""
    seen: dict[int, dict[str, Any]] = {}
    sites = ht.sites(model)
    hooks = [
        site.module.register_forward_hook(
            lambda _, args, kwargs, out, at=site.layer: seen.update({at: kwargs | {"out": out[0]}}), with_kwargs=True
        )
        for site in sites
    ]
    model(**tokenizer(SENTENCE, return_tensors="pt"))
    for hook in hooks:
        hook.remove()
    rows = []
    for site in sites:
        there = seen[site.layer]
        own = GroupedAttention(there["hidden_states"].shape[-1], site.heads, site.kv_heads, site.head_dim)
        own.load_state_dict(site.module.state_dict())
        out = own(there["hidden_states"], *there["position_embeddings"])
        error = (out - there["out"]).abs().max() / there["out"].abs().max()
        rows.append({"name": "layer", "layer": site.layer, "error": error.item()})
    return rows, (
        "each attention layer computed anew by a class that lesson 01 writes out, with the model's own weights, on "
        f"{SENTENCE!r}. error: largest difference of any number that the two return, as a share of the largest number"
    )


@torch.no_grad()
def circuits(model: nn.Module, tokenizer: Any, sizes: Mapping[str, int]) -> Table:
    """Measure each head's W_OV: how many directions it uses, and whether it raises the word that it reads."""
    ov, site_list = geometry.ov(model), list(ht.sites(model))
    words = model.get_input_embeddings().weight.detach().float()
    read = words / (words.square().mean(-1, keepdim=True) + 1e-5).sqrt()  # RMSNorm, but for its gain
    w_u = model.get_output_embeddings().weight.detach().float() * model.model.norm.weight.float()
    w_u = w_u - w_u.mean(0)  # the softmax ignores what all words share
    draw = torch.Generator().manual_seed(0)
    every = ordinary_tokens(model)
    n = min(sizes["circuit words"], len(every))
    ids = torch.tensor(every)[torch.randperm(len(every), generator=draw)[:n]]

    def row(name: str, layer: int, head: int, circuit: geometry.FactoredMatrix) -> dict[str, Any]:
        gain = model.model.layers[layer].input_layernorm.weight.float()
        logits = ((read[ids] * gain) @ circuit.left) @ (circuit.right @ w_u.T)  # (word read, word said)
        own = logits.gather(1, ids[:, None])
        mean, low, high = interval((logits < own).float().mean(1))
        first, first_low, first_high = interval((logits > own).sum(1).eq(0).float())
        full = circuit.right.double() @ (joint * gain) @ circuit.left.double()
        values = torch.linalg.eigvals(full)  # those of words W_OV said, but for zeros
        strength = circuit.singular_values()
        return {
            "name": name,
            "layer": layer,
            "head": head,
            "effective_rank": geometry.effective_rank(circuit).item(),
            "largest_share": (strength.max() / strength.sum()).item(),
            "own_word": mean,
            "own_low": low,
            "own_high": high,
            "own_first": first,
            "first_low": first_low,
            "first_high": first_high,
            "eigenvalues": (values.real.sum() / values.abs().sum()).item(),
        }

    joint = (w_u.T @ (read - read.mean(0))).double()  # the sum over words of what is said times what is read
    rows = []
    for site in site_list:
        of_site = ov[site.key]
        shared = site.heads // site.kv_heads
        random = geometry.random_like(of_site[:1], seed=site.layer)
        rows += [row("head", site.layer, head, of_site[head]) for head in range(site.heads)]
        rows.append(row("random", site.layer, 0, random[0]))
        # The values of one head with the output of another that has other values: weights of the model, no head of it.
        crossed = geometry.FactoredMatrix(of_site.left[0], of_site.right[shared % site.heads])
        rows.append(row("crossed", site.layer, 0, crossed))
    return rows, (
        "W_OV of every head (gain of the norm before the layer folded in where words are read); random: independent "
        "Gaussian factors of the same shape, one for each layer; crossed: W_V of a layer's head 0 and W_O of a head "
        "with other values. effective_rank: of W_OV; largest_share: largest singular value, of their sum. A head is "
        f"given the normalised embedding of one word, {n} words in turn. own_word: share of all {len(w_u)} words "
        "whose logit it raises less than that of the word itself (chance 0.5), own_first: share of the words whose own "
        "logit it raises most, with 95 % intervals over words. eigenvalues: sum of the eigenvalues of W_E W_OV W_U, "
        "over the sum of their absolute values (1: all are positive)"
    )
