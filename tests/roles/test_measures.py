"""Statistics of rows, and units, against loops."""

import torch

from headtools.roles._taxonomy import statistics as measures
from headtools.roles._taxonomy.running_sums import Draws, Tally
from headtools.roles._taxonomy.spans import between, make_units
from headtools.roles.word_alignment import to_words


def test_content_is_the_correlation_without_position():
    torch.manual_seed(0)
    maps, vectors = torch.rand(1, 2, 6, 6), torch.randn(1, 6, 8)
    pairs = ~torch.eye(6, dtype=torch.bool)[None]
    unit = vectors[0] / vectors[0].norm(dim=-1, keepdim=True)
    for head in range(2):
        a, c = {}, {}
        for q in range(6):
            for k in range(6):
                if q != k:
                    a.setdefault(k - q, []).append(float(maps[0, head, q, k]))
                    c.setdefault(k - q, []).append(float(unit[q] @ unit[k]))
        x, y = (torch.tensor([v - sum(vs) / len(vs) for vs in d.values() for v in vs]) for d in (a, c))
        want = (x @ y) / (x.norm() * y.norm())
        assert torch.isclose(measures.content(maps, vectors, pairs)[0, head], want, atol=1e-5)


def test_content_of_a_positional_or_constant_map_is_zero():
    vectors, pairs = torch.randn(1, 7, 4), ~torch.eye(7, dtype=torch.bool)[None]
    by_offset = torch.rand(13)[measures.offsets(torch.zeros(7, 7)) + 6]
    maps = torch.stack([by_offset, torch.full((7, 7), 1 / 7)])[None]
    assert (measures.content(maps, vectors, pairs) == 0).all()


def test_units_of_words_are_those_of_to_words():
    torch.manual_seed(0)
    words = torch.tensor([[-1, 0, 0, 1, 2, 2, -1], [-1, 0, 1, 1, -1, -1, -1]])
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    maps = torch.rand(2, 3, 7, 7).masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1)
    units = make_units(words, mask, torch.arange(7).expand(2, 7), "word")
    assert units.word.tolist() == [[-1, 0, 1, 2, -1], [-1, 0, 1, -1, -1]]
    assert units.mark.tolist() == [[0, -1, -1, -1, 6], [0, -1, -1, 4, -1]]
    assert units.real.sum(-1).tolist() == [5, 4]
    ours, theirs = between(maps, units, units), to_words(maps, words)
    assert torch.allclose(ours[:, :, 1:4, 1:4][0], theirs[0, :, :3, :3])
    assert torch.allclose(ours[:, :, 1:3, 1:3][1], theirs[1, :, :2, :2])
    assert torch.allclose(ours.sum(-1), units.real[:, None].float().expand(2, 3, 5))


def test_tokens_with_padding_on_the_left():
    words, mask = torch.tensor([[-1, -1, 0, 1]]), torch.tensor([[0, 0, 1, 1]])
    units = make_units(words, mask, torch.tensor([[0, 0, 5, 6]]), "token")
    assert units.of_token.tolist() == [[-1, -1, 0, 1]]
    maps = torch.zeros(1, 1, 4, 4)
    maps[0, 0, 3, 2] = 1
    assert between(maps, units, units).tolist() == [[[[0, 0], [1, 0]]]]


def test_tallies_do_not_grow():
    draws, tally = Draws(20, 0), Tally()
    values = torch.rand(9, 3, 2)
    for part in values.split(2):
        tally.add(part, draws(len(part)))
    assert tally.replicas.shape == (20, 3, 2)
    assert torch.allclose(tally.total.float(), values.sum(0))
    again = torch.cat(list((lambda g: [g(2), g(2), g(2), g(2), g(1)])(Draws(20, 0))), 1)
    assert torch.allclose(tally.replicas, torch.einsum("tn,nrh->trh", again, values), atol=1e-5)
