"""Arithmetic on what was measured keeps its precision inside torch.autocast; only the model runs as autocast has it."""

import pytest
import torch

from headtools.roles import induction, probing
from headtools.roles.taxonomy import taxonomy
from headtools.roles.word_alignment import to_words

from .small import SAID, wordpieces
from .test_taxonomy import bert  # noqa: F401


def both(function):
    """What a function gives outside and inside of autocast."""
    plain = function()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return plain, function()


def noise(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def test_taxonomy_runs_inside_autocast(bert):  # noqa: F811
    tokenizer = wordpieces()
    roles = ["statistic", "weight", "content"]
    plain, inside = both(lambda: taxonomy(bert, tokenizer, 3 * SAID, roles=roles, times=50))
    assert plain[["layer", "head", "role", "n"]].equals(inside[["layer", "head", "role", "n"]])
    assert (plain.score - inside.score).abs().max() < 0.1  # the model itself is as far off
    assert plain.baseline.equals(inside.baseline)
    inside = inside.dropna()  # content of short sentences has no interval
    assert ((inside.low <= inside.score + 1e-6) & (inside.score <= inside.high + 1e-6)).all()


def test_a_taxonomy_of_a_model_that_autocast_leaves_alone_is_the_same(bert):  # noqa: F811
    """Of one that runs in double precision, which autocast does not lower."""
    model = type(bert)(bert.config).double().eval()
    model.load_state_dict(bert.state_dict())
    plain, inside = both(lambda: taxonomy(model, wordpieces(), 3 * SAID, times=50))
    assert plain.equals(inside)


def maps():
    return noise(2, 3, 5, 5).softmax(-1), torch.tensor([[0, 0, 1, 2, -1], [0, 1, 1, -1, -1]])


def discriminant():
    x = noise(2, 60, 4)
    return probing.fit_and_predict("discriminant", x, torch.arange(60) % 3, torch.arange(40) % 4, None)


@pytest.mark.parametrize(
    "function",
    [
        lambda: to_words(*maps()),
        discriminant,
    ],
    ids=["to_words", "discriminant"],
)
def test_is_the_same_inside_autocast(function):
    plain, inside = both(function)
    assert plain.dtype == inside.dtype
    assert torch.equal(plain, inside)


def test_copying_multiplies_in_full_precision():
    from headtools.organism.toy_decoder import ToyDecoder

    model = ToyDecoder().double()
    plain, inside = both(lambda: induction.copying(model, n=5, length=8))
    assert plain.equals(inside)
