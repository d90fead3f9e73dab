"""Answers to the exercises of lesson 04: right ones, and wrong ones with what their hint must say."""

import random

import numpy as np
import torch


def right_gradient(X, Y, W):
    return X.T @ ((X @ W).softmax(-1) - Y) / len(X)


def gradient_by_autograd(X, Y, W):
    W = W.clone().requires_grad_()
    torch.nn.functional.cross_entropy(X @ W, Y).backward()
    return W.grad


def right_control(words, labels):
    drawn = {word: random.choice(labels) for word in set(words)}
    return [drawn[word] for word in words]


def control_in_numpy(words, labels):
    types, place = np.unique(words, return_inverse=True)
    return np.random.default_rng(3).choice(labels, len(types))[place]


def uniform_control(words, labels):
    drawn = {word: random.choice(sorted(set(labels))) for word in set(words)}
    return [drawn[word] for word in words]


def shuffled(words, labels):
    return random.sample(labels, len(labels))


def right_remove(z, v):
    return z - (z @ v)[:, None] * v / (v @ v)


def remove_by_matrix(z, v):
    return (z.double() @ (torch.eye(len(v)) - torch.outer(v, v) / v.square().sum()).double()).numpy()


def right_attach(maps, down, up):
    scores = torch.einsum("k,kij->ij", down, maps) + torch.einsum("k,kji->ij", up, maps)
    return scores.fill_diagonal_(-torch.inf).argmax(0)


def attach_in_a_loop(maps, down, up):
    heads = []
    for j in range(maps.shape[1]):
        score = {i: float(down @ maps[:, i, j] + up @ maps[:, j, i]) for i in range(maps.shape[1]) if i != j}
        heads.append(max(score, key=score.get))
    return heads


ANSWERS = {
    "04.gradient": {
        "right": [right_gradient, gradient_by_autograd, lambda X, Y, W: right_gradient(X, Y, W).tolist()],
        "wrong": [
            (lambda X, Y, W: right_gradient(X, Y, W) * len(X), "sum over words"),
            (lambda X, Y, W: -right_gradient(X, Y, W), "sign is turned round"),
            (lambda X, Y, W: X.T @ (X @ W - Y) / len(X), "scores minus labels"),
            (lambda X, Y, W: X.T @ ((X @ W).softmax(0) - Y) / len(X), "normalised over the words"),
            (lambda X, Y, W: X.T @ (X @ W).softmax(-1) / len(X), "Subtract what it should say"),
            (lambda X, Y, W: 0 * W, "Multiply each word's error"),
            (lambda X, Y, W: (X @ W).softmax(-1) - Y, "The shape is"),
        ],
    },
    "04.control": {
        "right": [right_control, control_in_numpy],
        "wrong": [
            (shuffled, "several labels.*draw once for each different word"),
            (lambda words, labels: [random.choice(labels) for _ in words], "several labels"),
            (uniform_control, "One label in five.*as often as it occurs"),
            (lambda words, labels: [labels[0]] * len(words), "Every word has the same label"),
            (lambda words, labels: labels[:2], "2 labels came for 5 words"),
            (lambda words, labels: list(words), "'dog' is none of the task's labels"),
            (lambda words, labels: "NOUN", "A list of labels is asked for, this is a str"),
            (lambda words, labels: {"dog": "NOUN"}, "A list of labels is asked for, this is a dict"),
            (lambda words: words, "stopped with TypeError"),
        ],
    },
    "04.remove": {
        "right": [right_remove, remove_by_matrix, lambda z, v: right_remove(z, v / v.norm()).tolist()],
        "wrong": [
            (lambda z, v: z - right_remove(z, v), "part along v, the part to take away"),
            (lambda z, v: z - (z @ v)[:, None] * v, "divide by its squared length"),
            (lambda z, v: z - (z @ v)[:, None] * v / v.norm(), "divide by its length twice"),
            (lambda z, v: z - v, "lost the whole of v"),
            (lambda z, v: z - v / v.norm(), "lost v at length 1"),
            (lambda z, v: 2 * z - right_remove(z, v), "twice as much along v"),
            (lambda z, v: z, "Nothing was taken away"),
            (lambda z, v: 0 * z, "something else changed too"),
            (lambda z, v: right_remove(z, v) + v, "there is still up to"),
            (lambda z, v: z @ v, "The shape is"),
        ],
    },
    "04.attach": {
        "right": [right_attach, attach_in_a_loop],
        "wrong": [
            (
                lambda maps, down, up: (
                    torch.einsum("k,kij->ij", down, maps) + torch.einsum("k,kji->ij", up, maps)
                ).argmax(0),
                "its own head.*diagonal",
            ),
            (lambda maps, down, up: right_attach(maps, up, down), "down and up are exchanged"),
            (lambda maps, down, up: right_attach(maps, down, 0 * up), "Only the looks down"),
            (lambda maps, down, up: right_attach(maps, 0 * down, up), "Only the looks up"),
            (lambda maps, down, up: (right_attach(maps, down, up) + 1) % maps.shape[1], "greatest sum"),
            (lambda maps, down, up: maps.sum(0), "The shape is"),
        ],
    },
}
