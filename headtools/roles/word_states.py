"""The vectors a model has for each word: the output z of every head, of every layer, and the residual stream."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headtools.heads._devices import device_of
from headtools.heads._finite import check_weights, explain_nonfinite
from headtools.heads._select import Heads, select
from headtools.heads.record import record
from headtools.heads.sites import sites
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align

OF = ("head", "layer", "residual")
PIECES = ("first", "last", "mean")
MOST_BYTES = 2 * 2**30


class Place(NamedTuple):
    """Where a vector was read: ``of`` head, layer or residual; ``head`` is None for the two others."""

    of: str
    kind: str
    layer: int
    head: int | None = None


@torch.no_grad()
def word_states(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    of: Sequence[str] = ("head",),
    *,
    heads: Heads | None = None,
    pieces: str = "last",
    only: Sequence[Sequence[bool]] | None = None,
    batch_size: int = 32,
) -> dict[Place, Tensor]:
    """Read the vectors of every word in one pass: a tensor (word, features) float32 for each place in the model.

    The words of all sentences follow one another; ``only`` says for each sentence which of its words to keep. ``of``
    names what to read:

    "head"      z of each head, value_dim features; with ``heads``, of those alone: {("encoder", 2): [0, 5]} or
                [("encoder", 2, 0), ...]
    "layer"     z of all heads of a layer side by side
    "residual"  the residual stream as layer 0, 1, ... reads it, and one more: what the last layer gives

    Of an encoder-decoder the encoder is read. A word of several tokens has the vector of its ``pieces``: "first",
    "last", or their "mean". What is kept takes 4 bytes a feature and word, of the organism 3 KB a word for its heads,
    once for heads and layers together, and 3.6 KB for the residual stream; beyond 2 GiB it is refused.

    Raises what ``ablate`` raises for heads that are not there, and ValueError for an unknown ``of`` or ``pieces``, no
    word to keep, more than 2 GiB, and a model that runs one attention layer several times (ALBERT), whose layers cannot
    be told apart.

    >>> import headtools as ht
    >>> states = word_states(*ht.load(), ht.corpus("organism", limit=2), ["head", "residual"])
    >>> states[Place("head", "encoder", 5, 0)].shape, states[Place("residual", "encoder", 6)].shape
    (torch.Size([31, 16]), torch.Size([31, 128]))
    """
    of = (of,) if isinstance(of, str) else tuple(of)
    if not of or set(of) - set(OF):
        raise ValueError(f"of must name some of {', '.join(OF)}; got {of!r}")
    if pieces not in PIECES:
        raise ValueError(f"pieces must be one of {', '.join(PIECES)}; got {pieces!r}")
    check_weights(model)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words))  # alike in length: less padding
    wanted = [[True] * len(s.words) for s in sentences] if only is None else [list(map(bool, row)) for row in only]
    _check(sentences, wanted)
    total, pool, streams = sum(map(sum, wanted)), (torch.tensor([]),) * 2, []

    def fold(_site: object, seen: object, before: list[Tensor] | None) -> list[Tensor]:
        return [*(before or []), _pooled(seen.z.flatten(2), pool).unflatten(-1, seen.z.shape[2:])]

    reader = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    chosen = None if heads is None else {site.key: some for site, some in select(sites(model), heads).items()}
    read = None if {"head", "layer"} & set(of) else ()  # None: of all sites
    with record(model, want="z", accumulate=fold, only=read) as found:
        for start in range(0, len(order), batch_size):
            some = order[start : start + batch_size]
            batch, words = align(tokenizer, [sentences[i] for i in some], device=device_of(model))
            pool = _pool(words, [wanted[i] for i in some], pieces)
            out = reader(**batch, output_hidden_states="residual" in of)
            if "residual" in of:
                streams.append([_pooled(x, pool) for x in out.hidden_states])
                broken = [layer for layer, x in enumerate(streams[-1]) if not x.isfinite().all()]
                if broken:
                    kind = next(iter(sites(model))).kind
                    raise ValueError(
                        f"the residual stream that {kind} {broken[0]} reads is NaN or infinite; "
                        f"{explain_nonfinite(model)}"
                    )
            if start == 0:
                _refuse_much([*(found[key][0] for key in found), *(streams[0] if streams else ())], total)
    back = _back([sum(wanted[i]) for i in order], order)
    states: dict[Place, Tensor] = {}
    for key in found:
        kind, layer, z = " ".join(key[:-1]), key[-1], torch.cat(found[key])
        if len(z) != total:
            times = len(z) // total
            raise ValueError(f"{kind} {layer} runs {times} times in one pass: its layers cannot be told apart")
        z = z[back]
        if "head" in of:
            some = range(z.shape[1]) if chosen is None else chosen.get(key, ())
            states |= {Place("head", kind, layer, h): z[:, h] for h in some}
        if "layer" in of:
            states[Place("layer", kind, layer)] = z.flatten(1)
    kind = next(iter(sites(model))).kind
    for layer, parts in enumerate(zip(*streams, strict=True)):
        states[Place("residual", kind, layer)] = torch.cat(parts)[back]
    return states


def _check(sentences: Sequence[Sentence], wanted: list[list[bool]]) -> None:
    """Refuse what would give no vectors, or those of other words."""
    if len(wanted) != len(sentences):
        raise ValueError(f"only has {len(wanted)} rows for {len(sentences)} sentences; needed: one a sentence")
    for i, (sentence, row) in enumerate(zip(sentences, wanted, strict=True)):
        if len(row) != len(sentence.words):
            raise ValueError(f"only[{i}] has {len(row)} entries for {len(sentence.words)} words; needed: one a word")
    if not any(map(any, wanted)):
        raise ValueError(f"{len(sentences)} sentences came with no word to keep; give sentences the task asks about")


def _pool(words: Tensor, wanted: list[list[bool]], pieces: str) -> tuple[Tensor, Tensor]:
    """Which tokens (of B * T) make the vectors of the wanted words, and the number of the word that each is for."""
    own = []
    for b, keep in enumerate(wanted):
        row = words[b].tolist()
        tokens: dict[int, list[int]] = {}
        for t, word in enumerate(row):
            tokens.setdefault(word, []).append(b * len(row) + t)
        own += [tokens[w] for w, kept in enumerate(keep) if kept]
    chosen = [{"first": some[:1], "last": some[-1:], "mean": some}[pieces] for some in own]
    number = [i for i, some in enumerate(chosen) for _ in some]
    tokens = [t for some in chosen for t in some]
    return torch.tensor(tokens, device=words.device).long(), torch.tensor(number, device=words.device).long()


def _pooled(x: Tensor, pool: tuple[Tensor, Tensor]) -> Tensor:
    """Vectors of words out of those of tokens: (B, T, features) to (word, features), float32, on the CPU."""
    tokens, number = pool
    x = x.flatten(0, 1)[tokens].float()
    if len(number) and int(number[-1]) + 1 < len(number):
        total = x.new_zeros(int(number[-1]) + 1, x.shape[1]).index_add_(0, number, x)
        x = total / torch.bincount(number)[:, None]
    return x.cpu()


def _refuse_much(kept: list[Tensor], total: int) -> None:
    """Refuse to go on where the vectors of all words would not fit; ``kept`` are those of the first batch."""
    words = max((len(x) for x in kept), default=0)
    if words and (size := 4 * total * sum(x.numel() for x in kept) // words) > MOST_BYTES:
        raise ValueError(
            f"the vectors of {total:,} words take {size / 2**30:.1f} GiB, {MOST_BYTES / 2**30:.0f} GiB is the most; "
            f"give about {int(total * MOST_BYTES / size):,} words, fewer places (of=), or a task with fewer words"
        )


def _back(counts: list[int], order: list[int]) -> Tensor:
    """Where each word stands, by sentence as given, in what was read sentence by sentence in ``order``."""
    starts = torch.tensor([0, *counts]).cumsum(0)
    place = {i: k for k, i in enumerate(order)}
    spans = [torch.arange(int(starts[place[i]]), int(starts[place[i] + 1])) for i in range(len(order))]
    return torch.cat(spans)
