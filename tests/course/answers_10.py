"""Answers to the exercises of lesson 10: right ones, and wrong ones with what their hint must say."""

import numpy as np
import torch


def right_merge(W_V, W_O, rank):
    u, s, vt = torch.linalg.svd((W_V @ W_O).sum(0))
    return u[:, :rank] * s[:rank] @ vt[:rank]


def merge_by_the_right_side(W_V, W_O, rank):
    whole = W_V[0] @ W_O[0] + W_V[1] @ W_O[1]
    directions = np.linalg.eigh((whole.T @ whole).numpy())[1][:, -rank:]
    return whole.numpy() @ directions @ directions.T


def merge_in_double(W_V, W_O, rank):
    u, s, v = torch.svd_lowrank(sum(v @ o for v, o in zip(W_V.double(), W_O.double(), strict=True)), q=len(W_V[0]))
    return u[:, :rank] @ torch.diag(s[:rank]) @ v[:, :rank].T


def svd(W_V, W_O):
    return torch.linalg.svd((W_V @ W_O).sum(0))


def weakest(W_V, W_O, rank):
    u, s, vt = svd(W_V, W_O)
    return u[:, -rank:] * s[-rank:] @ vt[-rank:]


def right_remove(W_O, v):
    unit = v / v.norm()
    return W_O - torch.outer(W_O @ unit, unit)


def remove_by_a_projection(W_O, v):
    return W_O @ (torch.eye(len(v)) - torch.outer(v, v) / (v @ v))


def remove_row_by_row(W_O, v):
    return [[float(w - (row @ v) / (v @ v) * x) for w, x in zip(row, v, strict=True)] for row in W_O]


def along(W_O, v):
    return torch.outer(W_O @ v, v)


def right_side(before, after):
    u, _, vt = torch.linalg.svd(before - after)
    return "read" if (u[:, 0] @ after).norm() < (after @ vt[0]).norm() else "write"


def side_by_the_null_space(before, after):
    """The direction written no more is in the null space of what is left, and was not in that of before."""
    lost = before - after
    v = lost[lost.norm(dim=1).argmax()]
    return "Write" if np.allclose((after @ v).numpy(), 0, atol=1e-4 * float(v.norm())) else "Read"


def exchanged(before, after):
    return {"read": "write", "write": "read"}[right_side(before, after)]


ANSWERS = {
    "10.merge": {
        "right": [right_merge, merge_by_the_right_side, merge_in_double],
        "wrong": [
            (lambda W_V, W_O, rank: (W_V @ W_O).sum(0), "rank is too high for one head"),
            (lambda W_V, W_O, rank: right_merge(W_V, W_O, rank) / 2, "added, not averaged"),
            (lambda W_V, W_O, rank: (W_V @ W_O).mean(0), "outputs are added, and the rank"),
            (lambda W_V, W_O, rank: W_V.sum(0) @ W_O.sum(0), "summed on their own"),
            (lambda W_V, W_O, rank: W_V.mean(0) @ W_O.mean(0), "averaged on their own"),
            (lambda W_V, W_O, rank: W_V[0] @ W_O[0], "the second is lost"),
            (lambda W_V, W_O, rank: W_V[1] @ W_O[1], "the first is lost"),
            (lambda W_V, W_O, rank: svd(W_V, W_O)[0][:, :rank] @ svd(W_V, W_O)[2][:rank], "strengths are missing"),
            (weakest, "weakest directions"),
            (lambda W_V, W_O, rank: torch.eye(len(W_V[0])), "comes nearest to that sum"),
            (lambda W_V, W_O, rank: W_V @ W_O, r"The shape is \(2, 4, 4\)"),
            (lambda W_V, W_O, rank: W_V @ W_V, "stopped with RuntimeError"),
            (torch.eye(3), "A function is asked for"),
        ],
    },
    "10.remove": {
        "right": [right_remove, remove_by_a_projection, remove_row_by_row],
        "wrong": [
            (lambda W_O, v: W_O - along(W_O, v), "too large by its length squared"),
            (lambda W_O, v: W_O - along(W_O, v) / v.norm(), "once for each time v is used"),
            (lambda W_O, v: along(W_O, v) / (v @ v), "it is what should go"),
            (lambda W_O, v: W_O - v, "however much of it the row has"),
            (lambda W_O, v: W_O + along(W_O, v) / (v @ v), "mind the sign"),
            (lambda W_O, v: W_O - 2 * along(W_O, v) / (v @ v), "turns the part along v around"),
            (lambda W_O, v: W_O, "Nothing has changed"),
            (lambda W_O, v: W_O * 0, "its part along v, and no more"),
            (lambda W_O, v: W_O.T, r"The shape is \(3, 1\)"),
            (lambda W_O, v: "all", "A tensor of shape"),
            (lambda W_O, v: W_O @ torch.outer(v, v)[1:], "stopped with"),
        ],
    },
    "10.side": {
        "right": [right_side, side_by_the_null_space],
        "wrong": [
            (exchanged, "the two exchanged"),
            (lambda before, after: "read", "You say 'read' of every edit"),
            (lambda before, after: "write", "You say 'write' of every edit"),
            (lambda before, after: "written", "you say 'written'"),
            (lambda before, after: 1, "this is an int"),
            (lambda before, after: right_side(before, after) if len(before) < 5 else "read", "1 of 6 edits are told"),
            (lambda before, after: before.missing, "stopped with AttributeError"),
            ("read", "A function is asked for"),
        ],
    },
    "10.position": {
        "right": [[1], (1,), {1}, 1, torch.tensor([1]), np.array([1]), [1, 5]],
        "blank": [],
        "wrong": [
            ([2], "The noun is where this head looks"),
            ([1, 2], "The noun is where this head looks"),
            ([0], "has not changed"),
            ([3], "has not changed"),
            ([0, 1], "more than one word is changed"),
            ([0, 1, 3], "more than one word is changed: the translation is 'gove le bizo kode"),
            ([], "nothing is patched"),
            ([7], "positions 0 to 4"),
            ([-1], "positions 0 to 4"),
            ("one", "A list of positions"),
            ([1.0], "A list of positions"),
            (lambda: [1], "A list of positions"),
        ],
    },
}
