"""Which heads look back at a fact when it is asked for, in a long text? ``python -m recipes.long_texts``

A needle: one sentence with a fact, put into English prose at several depths, and at the end a question. Every head's
score is the weight that the question's tokens give to those of the fact (retrieval heads, QRHead: Zhang et al. 2025,
arXiv:2506.09944). The same texts with another end are the baseline: a head that looks at the needle anyway is no
retrieval head. Then the strongest heads may see a window only, and the answer's loss says whether they are used.

A map of T tokens has T x T cells in every head. None is made: softmax is exact in blocks (:func:`attention`).
"""

from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import headtools as ht
from headtools.importance.statistics import Block

FACT, QUESTION, ANSWER = "The code of the blue suitcase is 7319.", "The code of the blue suitcase is", " 7319"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # where in the text the fact stands


def attention(q: Tensor, k: Tensor, v: Tensor, block: int = 256) -> Tensor:
    """Return softmax(q k') v without the map, for q (T, d), k (S, d), v (S, e): by blocks of keys.

    exp(score) may be too large for a float, so the largest score so far is subtracted. When a block of keys brings a
    larger one, what was summed before is scaled down by exp(old - new) (Milakov and Gimelshein 2018, arXiv:1805.02867).

    >>> q, k, v = torch.randn(3, 700, 8, generator=torch.Generator().manual_seed(0)).double().unbind(0)
    >>> torch.allclose(attention(q, 9 * k, v), (q @ (9 * k).T).softmax(-1) @ v)
    True
    """
    largest = torch.full((len(q), 1), -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(largest), q.new_zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(block), v.split(block), strict=True):
        scores = q @ keys.T  # (T, block), the largest tensor there is
        larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = (scores - larger).exp()
        shrink = (largest - larger).exp()  # 0 for the first block
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ values
        largest = larger
    return out / total  # log-sum-exp of a row is largest + log(total)


def text(tokenizer: object, n_tokens: int, depth: float, question: str) -> tuple[Tensor, range, range]:
    """Return tokens (1, T) of prose with the fact at a depth and a question, and where fact and question stand."""

    def ids(words: str) -> list[int]:
        return tokenizer(words, add_special_tokens=False)["input_ids"]

    fact, ask = ids(" " + FACT), ids(" " + question)
    n_prose = n_tokens - len(fact) - len(ask)
    prose = ids(" ".join(ht.natural_text(split="all")))
    prose = (prose * (1 + n_prose // len(prose)))[:n_prose]
    start = int(depth * n_prose)
    tokens = [*prose[:start], *fact, *prose[start:], *ask]
    return torch.tensor([tokens]), range(start, start + len(fact)), range(len(tokens) - len(ask), len(tokens))


def needle(model: nn.Module, tokenizer: object, n_tokens: int, question: str = QUESTION) -> ht.HeadScores:
    """Return each head's weight from the question to the fact, the mean over depths, with intervals over them."""
    batches, places = [], {}
    for depth in DEPTHS:
        ids, fact, asking = text(tokenizer, n_tokens, depth, question)
        batches.append({"input_ids": ids})
        places[id(ids)] = fact, asking

    def on_the_fact(block: Block) -> tuple[Tensor, Tensor]:
        """Return the weight on all tokens of the fact, (1, head, query), and which queries are the question's."""
        fact, asking = places[id(block.batch["input_ids"])]
        query = torch.arange(block.rows.shape[2]) + block.first
        weight = block.rows[..., fact.start : fact.stop].sum(-1)
        return weight, block.queries & (query >= asking.start) & (query < asking.stop)

    return ht.statistics(model, batches, {"needle": on_the_fact})["needle"]


def answer_loss(model: nn.Module, tokenizer: object, n_tokens: int) -> float:
    """Return the mean loss of the answer after the question, in nats a token."""
    losses = []
    for depth in DEPTHS:
        ids, _, _ = text(tokenizer, n_tokens, depth, QUESTION + ANSWER)
        n_answer = len(tokenizer(ANSWER, add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            logits = model(ids, logits_to_keep=n_answer + 1).logits[0, :-1]
        losses.append(nn.functional.cross_entropy(logits.float(), ids[0, -n_answer:]))
    return float(torch.stack(losses).mean())


def main(
    model: Annotated[str, typer.Option(help="what ht.load takes: smollm2, a folder")] = "smollm2",
    tokens: Annotated[int, typer.Option(help="length of the texts")] = 2048,
    heads: Annotated[int, typer.Option(help="how many of the strongest get a window")] = 8,
) -> None:
    """Print the strongest heads, and the answer's loss while they may see a window only."""
    lm, tokenizer = ht.load(model)
    lm = lm.float().eval()
    asked, unasked = needle(lm, tokenizer, tokens), needle(lm, tokenizer, tokens, "The weather was fine, and they went")
    strongest = asked.top(heads)
    print(f"| head | weight on the fact when asked, of {tokens:,} tokens | without the question |\n|---|---|---|")
    for head in strongest:
        print(f"| {head[-2]}.{head[-1]} | {asked[head]:.3f} | {unasked[head]:.3f} |")
    chosen: dict[tuple, list[int]] = {}
    for *site, head in strongest:
        chosen.setdefault(tuple(site), []).append(head)
    before = answer_loss(lm, tokenizer, tokens)
    with ht.window(lm, chosen, first=4, recent=64):
        without = answer_loss(lm, tokenizer, tokens)
    weakest = {
        site: [h for h in range(len(asked.values[site])) if h not in some][: len(some)] for site, some in chosen.items()
    }
    with ht.window(lm, weakest, first=4, recent=64):
        control = answer_loss(lm, tokenizer, tokens)
    print(
        f"\nloss of the answer {before:.2f} nats; these heads with a window {without:.2f}; as many others {control:.2f}"
    )


if __name__ == "__main__":
    typer.run(main)
