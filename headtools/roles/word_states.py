"""The vectors a model has for each word: the output z of every head, of every layer, and the residual stream."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_weights, explain_nonfinite
from headtools.heads._devices import device_of
from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.record import record
from headtools.heads.sites import Heads, select, sites
from headtools.heads.verify import check_padding_verified
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align, numbered

COMPONENTS = ("head", "layer", "residual")
BATCH_SIZE = 32


class Place(NamedTuple):
    """Where in a model a vector was read: ``component`` is head, layer or residual, ``head`` None for the last two."""

    component: str
    kind: str
    layer: int
    head: int | None = None


@torch.no_grad()
def word_states(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    component: Sequence[str] = ("head",),
    *,
    heads: Heads | None = None,
) -> dict[Place, Tensor]:
    """Read the vectors of every word in one pass: a tensor (word, features) float32 for each place in the model.

    The words of all sentences follow one another; one of several tokens has the vector of the last. ``component``:
    "head" is z of each head (of ``heads`` alone, where given), "layer" that of a layer's heads, concatenated,
    "residual" the stream as layer 0, 1, ... reads it, and one more, the output of the last layer. Of an encoder-decoder
    the encoder is read. Raises ValueError for a model that runs one layer several times (ALBERT).

    >>> import headtools as ht
    >>> states = word_states(*ht.load(), ht.corpus("organism", limit=2), ["head", "residual"])
    >>> states[Place("head", "encoder", 5, 0)].shape, states[Place("residual", "encoder", 6)].shape
    (torch.Size([31, 16]), torch.Size([31, 128]))
    """
    components = (component,) if isinstance(component, str) else tuple(component)
    if not components or set(components) - set(COMPONENTS):
        raise ValueError(f"got component={component!r}; expected one or more of {', '.join(COMPONENTS)}")
    check_weights(model)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words))  # similar lengths: less padding
    n_words, tokens, residual = sum(len(s.words) for s in sentences), torch.tensor([]), []

    def words_of_batch(_site: object, captured: object, previous: list[Tensor] | None) -> list[Tensor]:
        # z (B, T, head, value_dim) to (word, head, value_dim), batch after batch
        return [*(previous or []), captured.z.flatten(0, 1)[tokens].float().cpu()]

    reader = model.get_encoder() if is_encoder_decoder(model) else model
    first_kind = next(iter(sites(model))).kind
    heads_of = None if heads is None else {site.key: listed for site, listed in select(sites(model), heads).items()}
    only_sites = None if {"head", "layer"} & set(components) else ()  # None: all
    with record(model, want="z", accumulate=words_of_batch, only=only_sites) as recorded:
        for start in range(0, len(order), BATCH_SIZE):
            indices = order[start : start + BATCH_SIZE]
            with numbered(indices):
                batch, words = align(tokenizer, [sentences[i] for i in indices], device=device_of(model))
            check_padding_verified(model, batch)
            tokens = _last_tokens(words)
            out = reader(**batch, output_hidden_states="residual" in components)
            if "residual" in components:
                residual.append([x.flatten(0, 1)[tokens].float().cpu() for x in out.hidden_states])
                for layer, x in enumerate(residual[-1]):
                    if not x.isfinite().all():
                        what = f"the residual stream that {first_kind} {layer} reads is NaN or infinite"
                        raise ValueError(f"{what}; {explain_nonfinite(model)}")
    # Words were read sentence by sentence in ``order``; a stable sort brings them back.
    original_order = torch.tensor([i for i in order for _ in sentences[i].words]).argsort(stable=True)
    states: dict[Place, Tensor] = {}
    for key in recorded:
        kind, layer, z = " ".join(key[:-1]), key[-1], torch.cat(recorded[key])
        if len(z) != n_words:
            raise ValueError(
                f"{kind} {layer} runs {len(z) // n_words} times in one pass; its layers cannot be separated"
            )
        z = z[original_order]
        if "head" in components:
            own_heads = range(z.shape[1]) if heads_of is None else heads_of.get(key, ())
            states |= {Place("head", kind, layer, head): z[:, head] for head in own_heads}
        if "layer" in components:
            states[Place("layer", kind, layer)] = z.flatten(1)
    for layer, by_batch in enumerate(zip(*residual, strict=True)):
        states[Place("residual", first_kind, layer)] = torch.cat(by_batch)[original_order]
    return states


def _last_tokens(words: Tensor) -> Tensor:
    """The last token, of B * T, of every word; ``words`` (B, T) are those of the tokens."""
    # where the next token is of another word; in a row words follow one another
    following = torch.cat([words[:, 1:], torch.full_like(words[:, :1], -1)], 1)
    return ((words >= 0) & (words != following)).flatten().nonzero().flatten()
