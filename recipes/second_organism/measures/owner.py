"""How does the model know whom a noun belongs to, when no encoder head looks there? Single attention weights are cut.

In *the sister with this doctor*, the ending of *doctor* says the gender of *sister*, its owner. A cut takes one weight
away, that of a query for a key, in all heads of all layers: the attention knockout of Geva et al. 2023
(arXiv:2304.14767). Every cut is tried with another word in the owner's place, too.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads.intervals import bounds, linearised_ratio
from headtools.organism.batches import IGNORE
from headtools.organism.second.language import corpus
from headtools.organism.second.vocabulary import vocabulary
from headtools.roles.sentence import Sentence
from recipes.second_organism.batches import batches
from recipes.second_organism.measures._words import table
from recipes.second_organism.measures.use import piece

SENTENCES = 1_000
CUT = -1e9  # added to a score before the softmax; not -inf, which gives NaN where a query has no key left
AGREEING = ("det", "amod", "case")  # words whose translation says the gender of their noun


@dataclass(frozen=True)
class Owned:
    """A noun that belongs to another one: places of source words and of their translations, counted from 0."""

    noun: int
    preposition: int
    owner: int
    agreeing: tuple[int, ...]  # the owner's determiner, adjectives and preposition
    translated: tuple[int, ...]  # of each source word, the place of its translation
    words: int


def owned_nouns(sentence: Sentence) -> Iterator[Owned]:
    """Yield the nouns of a sentence that *of* or *with* joins to an owner, but no names: they have no endings.

    >>> sentence = next(s for s in corpus("test", 50) if any("owner" in p for p in s.phenomena))
    >>> owned = next(owned_nouns(sentence))
    >>> [sentence.words[i] for i in (owned.owner, owned.preposition, owned.noun)]
    ['létter', 'with', 'apples']
    """
    translated = tuple(sentence.alignment.index(i + 1) for i in range(len(sentence.words)))
    for i, relation in enumerate(sentence.universal):
        if relation == "nmod" and sentence.upos[i] == "NOUN":
            prepositions = [d - 1 for d in sentence.dependents(i + 1) if sentence.universal[d - 1] == "case"]
            owner = sentence.heads[i] - 1
            agreeing = (d - 1 for d in sentence.dependents(owner + 1) if sentence.universal[d - 1] in AGREEING)
            yield Owned(i, prepositions[0], owner, tuple(agreeing), translated, len(sentence.words))


Edges = list[tuple[int, int]]  # a query and a key
Cut = Callable[[Owned, Sequence[int]], Edges]


def to_preposition(owned: Owned, keys: Sequence[int]) -> Edges:
    """Encoder: the noun does not see its preposition."""
    return [(owned.noun, owned.preposition)]


def to_others(owned: Owned, keys: Sequence[int]) -> Edges:
    """Encoder: the noun sees its preposition, itself and the EOS token alone."""
    return [(owned.noun, i) for i in range(owned.words) if i not in (owned.noun, owned.preposition)]


def in_encoder(owned: Owned, keys: Sequence[int]) -> Edges:
    """Encoder: no word, nor the EOS token, sees these keys; they see themselves."""
    return [(query, key) for key in keys for query in range(owned.words + 1) if query != key]


def _later_queries(owned: Owned, key: int) -> range:
    """Decoder positions from the one behind a word's translation up to the one that writes the noun."""
    return range(owned.translated[key] + 2, owned.translated[owned.noun] + 1)


def in_decoder(owned: Owned, keys: Sequence[int]) -> Edges:
    """Decoder: what comes later does not see the translations of these keys. Position t + 1 reads target word t.

    Position t, which writes the word, stays visible. Where an agreeing word stands right before the owner, position t
    is the one that reads it, so cutting agreeing words takes away both.
    """
    return [(query, owned.translated[key] + 1) for key in keys for query in _later_queries(owned, key)]


def in_cross(owned: Owned, keys: Sequence[int]) -> Edges:
    """Cross-attention: what comes later does not see these keys in the source."""
    return [(query, key) for key in keys for query in _later_queries(owned, key)]


WITHOUT_CONTROL = (to_preposition, to_others)  # cuts of the noun, in which no other word can take the owner's place
# The cuts in each of the three kinds of attention, and whether words that agree with the owner count as the owner.
CUTS: dict[str, tuple[dict[str, Cut], bool]] = {
    "encoder: noun → *of*, *with*": ({"encoder": to_preposition}, False),
    "encoder: noun → all but *of*, *with*": ({"encoder": to_others}, False),
    "encoder: all words → owner": ({"encoder": in_encoder}, False),
    "decoder: later words → owner": ({"decoder": in_decoder}, False),
    "cross: later words → owner": ({"cross": in_cross}, False),
    "decoder and cross": ({"decoder": in_decoder, "cross": in_cross}, False),
    "encoder, decoder and cross": ({"encoder": in_encoder, "decoder": in_decoder, "cross": in_cross}, False),
    "all three, of words that agree with the owner, too": (
        {"encoder": in_encoder, "decoder": in_decoder, "cross": in_cross},
        True,
    ),
}


def edges(cut: Cut, owned: Owned, agreeing: bool, instead: bool, rng: random.Random) -> Edges:
    """The weights to cut; with ``instead``, those of as many other words before the noun, or of fewer if there are not.

    A random word stands nearer to the noun than its owner on average, so the control cuts fewer weights in the decoder.
    """
    keys = [owned.owner, *(owned.agreeing if agreeing else ())]
    if not instead:
        return cut(owned, keys)
    taken = {*keys, owned.preposition, owned.noun}
    others = [i for i in range(owned.noun) if i not in taken]
    return cut(owned, rng.sample(others, min(len(keys), len(others))))


@torch.no_grad()
def predictions(
    model: nn.Module, sentences: Sequence[Sentence], cuts: dict[str, Cut], agreeing: bool = False, instead: bool = False
) -> Tensor:
    """The likeliest word at every target word and EOS token, given the right words so far: (words,), token ids."""
    predicted, rng, rows = [], random.Random("other words"), iter(sentences)
    for batch in batches(sentences):
        there, labels = batch["attention_mask"].bool(), batch["labels"]
        n, source, target = len(there), there.shape[1], labels.shape[1]
        causal = torch.ones(target, target, dtype=torch.bool).tril()
        visible = {
            "encoder": there[:, None].repeat(1, source, 1),
            "cross": there[:, None].repeat(1, target, 1),
            "decoder": causal.repeat(n, 1, 1),
        }
        for row, sentence in zip(range(n), rows, strict=False):
            for owned in owned_nouns(sentence):
                for kind, cut in cuts.items():
                    for query, key in edges(cut, owned, agreeing, instead, rng):
                        visible[kind][row, query, key] = False
        masks = {
            kind: torch.zeros(allowed.shape).masked_fill(~allowed, CUT)[:, None] for kind, allowed in visible.items()
        }
        encoded = model.get_encoder()(input_ids=batch["input_ids"], attention_mask=masks["encoder"])
        logits = model(
            encoder_outputs=encoded,
            attention_mask=masks["cross"],
            decoder_attention_mask=masks["decoder"],
            decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
        ).logits
        predicted.append(logits.argmax(-1)[labels != IGNORE])
    return torch.cat(predicted)


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """How many owners' genders are right after each cut, and after the same cut of other words."""
    test = [s for s in corpus("test", min(SENTENCES, limit or SENTENCES)) if any("owner" in p for p in s.phenomena)]
    labels = torch.cat([b["labels"][b["labels"] != IGNORE] for b in batches(test)])
    needs = torch.tensor([needed for s in test for needed in (*("owner" in p for p in s.phenomena), False)])
    sentence_of = torch.tensor([i for i, s in enumerate(test) for _ in range(len(s.target) + 1)])
    genders = [piece(word, ["owner"]) for word in vocabulary()]
    numbers = {gender: i for i, gender in enumerate(dict.fromkeys(genders))}
    gender_of = torch.tensor([numbers[gender] for gender in genders])
    total = torch.zeros(len(test), dtype=torch.double).index_add_(0, sentence_of[needs], needs[needs].double())

    def right(words: Tensor) -> tuple[Tensor, float]:
        """Owners' genders right in each sentence, and the share of all other words that are right."""
        same = (gender_of[words] == gender_of[labels])[needs]
        by_sentence = torch.zeros(len(test), dtype=torch.double).index_add_(0, sentence_of[needs], same.double())
        return by_sentence, (words == labels)[~needs].float().mean().item()

    def share(values: Tensor) -> float:
        return round((values.sum() / total.sum()).item(), 4)

    uncut, others = right(predictions(model, test, {}))
    commonest = gender_of[labels][needs].bincount().max().item()
    result = {
        "n": int(total.sum()),
        "right": share(uncut),
        "others": round(others, 4),
        "commonest": round(commonest / int(total.sum()), 4),
        "cuts": [],
    }
    for name, (cuts, agreeing) in CUTS.items():
        cut, others = right(predictions(model, test, cuts, agreeing))
        ends = bounds(linearised_ratio((uncut - cut)[:, None], total))
        row = {
            "name": name,
            "cost": share(uncut - cut),
            "low": round(ends[0].item(), 4),
            "high": round(ends[1].item(), 4),
            "others": round(others, 4),
        }
        if not set(WITHOUT_CONTROL) & set(cuts.values()):
            control, _ = right(predictions(model, test, cuts, agreeing, instead=True))
            row["instead"] = share(uncut - control)
        result["cuts"].append(row)
    return result


def markdown(results: dict[str, dict]) -> str:
    """One row a cut, one column a model."""
    rows = []
    for i, name in enumerate(CUTS):
        cells = []
        for result in results.values():
            row = result["cuts"][i]
            instead = f"; {row['instead']:.3f}" if "instead" in row else ""
            cells.append(f"{row['cost']:.3f} ({row['low']:.3f}–{row['high']:.3f}){instead}")
        rows.append([name, *cells])
    uncut = "; ".join(
        f"{name}: {result['right']:.3f} right before, n = {result['n']}, the commonest gender {result['commonest']:.3f}"
        for name, result in results.items()
    )
    return "\n\n".join([table(["no weight left for", *results], rows), f"{uncut}."])
