"""Operations that each kind of work needs, counted: the bounds that every row of the benchmark stands beside.

One operation is one multiplication with its addition, of a matrix product; everything elementwise (norms, activations,
softmax, gates) is left out, a few hundredths at these widths. Per token, with width d, length T, inner width f:

- a layer's projections take 4 d^2, its scores q k' and its sums a v together 2 T d, its feed-forward part 2 d f; the
  last layer takes d times the vocabulary, and d^2 more in BERT. A decoder that reads an encoder has attention twice.
- **Gradient.** A backward pass has two products for each of the forward pass: one for the gradient of activations, one
  for that of weights. Importance needs the first alone, from the loss down to the lowest heads' outputs: 2 forward
  passes in all, less the lowest queries, keys, values and maps. q k' and a v have two active inputs and count twice.
  Reverse mode cannot do with less; forward mode needs a pass for every head. Where the loss is one's own, whether it
  couples examples is looked for once a call, from the loss back to the last heads.
- **Relevance** goes on to the embeddings: the lowest layer's part comes on top.
- **Leave-one-out**, exact, needs for each head what lies above it: the layers above, the rest of its own, the last
  layer, and one pass to start from. The attention of its own layer need not run again, since a layer's output without
  one head is the output less that head's share. A loop runs the model once for each head.
- **Pruning** a share p of all heads saves this share of attention, projections and maps.
- **Looking** at what a pass computes anyway (maps under eager attention, z under any) takes no operation.
"""

from __future__ import annotations

from subjects import FULL, VOCABULARY, Size  # noqa: F401  (FULL is for the examples)


def attention(size: Size) -> int:
    """Projections, scores and weighted sums of one attention."""
    return 4 * size.width**2 + scores(size)


def scores(size: Size) -> int:
    """Scores and weighted sums alone."""
    return 2 * size.tokens * size.width


def inner(size: Size) -> int:
    """One feed-forward part."""
    return 2 * size.width * size.inner


def last(kind: str, size: Size) -> int:
    """From the last layer to logits."""
    return size.width * VOCABULARY + (size.width**2 if kind == "bert" else 0)


def attentions(kind: str) -> int:
    """Attention sites in a layer; in an encoder-decoder, in a layer of both."""
    return 3 if kind == "marian" else 1


def forward(kind: str, size: Size) -> int:
    """A forward pass, per token."""
    parts = attentions(kind) * attention(size) + (2 if kind == "marian" else 1) * inner(size)
    return size.layers * parts + last(kind, size)


def relevance(kind: str, size: Size) -> float:
    """Passes for a forward pass and one back to the embeddings, activations only.

    >>> round(relevance("bert", FULL["bert"]), 2)
    2.01
    """
    extra = attentions(kind) * size.layers * scores(size)
    return 2 + extra / forward(kind, size)


def gradient(kind: str, size: Size) -> float:
    """Passes for a forward pass and one back to the lowest heads, activations only.

    >>> round(gradient("bert", FULL["bert"]), 2)
    1.99
    """
    lowest = (2 if kind == "marian" else 1) * (3 * size.width**2 + 2 * scores(size))
    return relevance(kind, size) - lowest / forward(kind, size)


def ablation(kind: str, size: Size) -> float:
    """Passes for the exact cost of every head.

    >>> round(ablation("bert", FULL["bert"]), 1), round(ablation("marian", FULL["marian"]), 1)
    (76.0, 68.8)
    """
    block, end = attention(size) + inner(size), last(kind, size)
    if kind != "marian":
        above = sum(n * block + inner(size) + end for n in range(size.layers))
        return 1 + size.heads * above / forward(kind, size)
    deep = block + attention(size)  # a decoder's layer
    encoder = sum(n * block + inner(size) + size.layers * deep + end for n in range(size.layers))
    own = sum(n * deep + attention(size) + inner(size) + end for n in range(size.layers))
    cross = sum(n * deep + inner(size) + end for n in range(size.layers))
    return 1 + size.heads * (encoder + own + cross) / forward(kind, size)


def loop(kind: str, size: Size) -> int:
    """Passes of a loop that leaves one head out after the other.

    >>> loop("bert", FULL["bert"])
    145
    """
    return 1 + attentions(kind) * size.layers * size.heads


def pruned(kind: str, size: Size, share: float) -> float:
    """A pass without this share of the heads, in passes with all.

    >>> round(pruned("bert", FULL["bert"], 0.5), 2)
    0.83
    """
    gone = share * attentions(kind) * size.layers * attention(size)
    return 1 - gone / forward(kind, size)
