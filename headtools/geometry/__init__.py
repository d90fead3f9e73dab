"""What heads can read and write, from their weights alone: ranks, overlaps, composition, beside chance.

Chance is what ``random_like`` gives, and what an ``untrained`` model has. Weights say what a head could do; what it
attends to and whether that matters, only maps and interventions say.

>>> from headtools import geometry
>>> import headtools as ht
>>> model, _ = ht.load()
>>> geometry.effective_rank(geometry.ov(model))["encoder", 0, 0] < 16
True
"""

from headtools.geometry.circuits import Circuits, ov, qk, random_like
from headtools.geometry.composition import composition
from headtools.geometry.factored_matrix import FactoredMatrix, Levels
from headtools.geometry.subspaces import cosine, effective_rank, overlap
from headtools.roles.controls import untrained

__all__ = [
    "Circuits",
    "FactoredMatrix",
    "Levels",
    "composition",
    "cosine",
    "effective_rank",
    "ov",
    "overlap",
    "qk",
    "random_like",
    "untrained",
]
