"""Kovaleva's classes by a rule: what each looks like, and how far the rule agrees with the eye."""

import pytest
import torch

from headtools.roles.map_classes import CLASSES, agreement, classify, features, labelled


def name(rows):
    m = torch.as_tensor(rows).float()
    return CLASSES[int(classify(m[None, None], torch.ones(1, len(m), dtype=torch.bool)))]


def column(n, at):
    return torch.eye(n)[at].expand(n, n)


def test_each_class():
    n = 12
    eye = torch.eye(n)
    block = torch.block_diag(torch.full((5, 5), 1 / 5), torch.full((7, 7), 1 / 7))
    torch.manual_seed(0)
    cases = {
        "vertical": [column(n, 0), column(n, 11), (column(n, 2) + column(n, 7)) / 2],
        "diagonal": [eye, eye.roll(1, 0), (eye + eye.roll(1, 0) + eye.roll(2, 0)) / 3],
        "vertical+diagonal": [share * (column(n, 11) + eye.roll(1, 0)) + (1 - 2 * share) / n for share in (0.5, 0.3)],
        "block": [block],
        "heterogeneous": [torch.full((n, n), 1 / n), torch.rand(n, n).softmax(-1), eye[torch.randperm(n)]],
    }
    cases["heterogeneous"] += [torch.full((n, n), 1 / n) for n in (4, 5, 6, 8, 20)]  # an even spread, however short
    for label, maps in cases.items():
        assert [name(m) for m in maps] == [label] * len(maps)


def test_padding_is_not_part_of_the_map():
    short, real = torch.zeros(1, 2, 12, 12), torch.zeros(1, 12, dtype=torch.bool)
    real[0, :7] = True
    short[0, 0, :7, :7], short[0, 1, :7, :7] = torch.eye(7), column(7, 3)
    short[..., 7:, :] = 1 / 12  # what a model leaves in rows of padding
    assert [CLASSES[i] for i in classify(short, real)[0]] == ["diagonal", "vertical"]


def by_hand(m):
    """The features of one map (n, n), read off one number at a time."""
    n = len(m)
    columns = [float(m[:, j].sum()) / n for j in range(n)]
    order = sorted(range(n), key=lambda j: -columns[j])
    without = m.clone()
    without[:, order[:2]] = 0

    def band(rows):
        sums = {k: sum(float(rows[i, i + k]) for i in range(n) if 0 <= i + k < n) for k in range(-3, 4)}
        return max(sum(sums[k + step] for step in range(3)) for k in range(-3, 2)) / n

    part = 0.0
    for cut in range(3, n - 2):
        within = float(m[:cut, :cut].sum() + m[cut:, cut:].sum()) / n
        part = max(part, within - (cut**2 + (n - cut) ** 2) / n**2)
    peak = sum(float(row.max()) for row in m) / n
    return columns[order[0]], columns[order[0]] + columns[order[1]], band(m), band(without), part, peak


def test_features_by_hand_with_padding():
    torch.manual_seed(1)
    sizes = [2, 3, 4, 5, 6, 7, 9, 14]
    maps, real = torch.rand(len(sizes), 3, 14, 14), torch.arange(14) < torch.tensor(sizes)[:, None]
    for i, n in enumerate(sizes):
        maps[i, :, :n, :n] = (5 * torch.randn(3, n, n)).softmax(-1)
    found = torch.stack(features(maps, real), -1)
    for i, n in enumerate(sizes):
        for head in range(3):
            assert found[i, head].tolist() == pytest.approx(by_hand(maps[i, head, :n, :n]), abs=1e-6), (n, head)


def test_agreement_with_the_eye():
    found = agreement()
    maps = labelled()
    assert found.n == len(maps) == sum(found.table.values()) >= 100
    assert {label for _, label in maps} <= {*CLASSES}
    assert all((m.sum(-1) - 1).abs().max() < 0.05 for m, _ in maps)
    assert found.share == pytest.approx(sum(v for (a, b), v in found.table.items() if a == b) / found.n)
    assert found.low < found.share < found.high
    assert found.share > 0.75
    assert found.kappa > 0.6


def test_kappa_by_hand():
    maps = [(torch.eye(6), "diagonal")] * 2 + [(column(6, 0), "vertical"), (torch.eye(6), "vertical")]
    found = agreement(maps)
    assert found.share == 0.75
    assert found.kappa == pytest.approx((0.75 - (0.5 * 0.75 + 0.5 * 0.25)) / 0.5)
