"""Statistics of rows, spans and running sums, against loops."""

import torch
from headtools.roles._taxonomy import statistics
from headtools.roles._taxonomy.running_sums import RunningSums
from headtools.roles._taxonomy.spans import maps_between_spans

from headtools.roles.spans import make_spans
from headtools.roles.word_alignment import to_words


def content(maps: torch.Tensor, vectors: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Correlation of maps (B, head, U, U) with the cosines of vectors (B, U, d)."""
    return statistics.correlation(maps.permute(0, 2, 3, 1), statistics.similarity(vectors, pairs), pairs)


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
        assert torch.isclose(content(maps, vectors, pairs)[0, head], want, atol=1e-5)


def test_content_of_a_positional_or_constant_map_is_zero():
    vectors, pairs = torch.randn(1, 7, 4), ~torch.eye(7, dtype=torch.bool)[None]
    by_offset = torch.rand(13)[statistics.offsets(torch.zeros(7, 7)) + 6]
    maps = torch.stack([by_offset, torch.full((7, 7), 1 / 7)])[None]
    assert (content(maps, vectors, pairs) == 0).all()


def test_spans_of_words_are_those_of_to_words():
    torch.manual_seed(0)
    words = torch.tensor([[-1, 0, 0, 1, 2, 2, -1], [-1, 0, 1, 1, -1, -1, -1]])
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    maps = torch.rand(2, 3, 7, 7).masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1)
    spans = make_spans(words, mask, torch.arange(7).expand(2, 7), "word")
    assert spans.word.tolist() == [[-1, 0, 1, 2, -1], [-1, 0, 1, -1, -1]]
    assert spans.special_token.tolist() == [[0, -1, -1, -1, 6], [0, -1, -1, 4, -1]]
    assert spans.exists.sum(-1).tolist() == [5, 4]
    ours, theirs = maps_between_spans(maps, spans, spans), to_words(maps, words)
    assert torch.allclose(ours[:, :, 1:4, 1:4][0], theirs[0, :, :3, :3])
    assert torch.allclose(ours[:, :, 1:3, 1:3][1], theirs[1, :, :2, :2])
    assert torch.allclose(ours.sum(-1), spans.exists[:, None].float().expand(2, 3, 5))


def test_tokens_with_padding_on_the_left():
    words, mask = torch.tensor([[-1, -1, 0, 1]]), torch.tensor([[0, 0, 1, 1]])
    spans = make_spans(words, mask, torch.tensor([[0, 0, 5, 6]]), "token")
    assert spans.of_token.tolist() == [[-1, -1, 0, 1]]
    maps = torch.zeros(1, 1, 4, 4)
    maps[0, 0, 3, 2] = 1
    assert maps_between_spans(maps, spans, spans).tolist() == [[[[0, 0], [1, 0]]]]


def test_running_sums_do_not_grow():
    sums, drawn = RunningSums(), torch.poisson(torch.ones(20, 9))
    values = torch.rand(9, 3, 2)
    for part, drawn_of_part in zip(values.split(2), drawn.split(2, 1), strict=True):
        sums.add(part, drawn_of_part)
    assert sums.replicas.shape == (20, 3, 2)
    assert torch.allclose(sums.total.float(), values.sum(0))
    assert torch.allclose(sums.replicas, torch.einsum("tn,nrh->trh", drawn, values), atol=1e-5)
