"""What heads can read and write, from their weights alone: ranks, overlaps, composition, copying, and what is chance.

    circuits     W_OV and W_QK of every head: ov(), qk()        low_rank  products of thin matrices: Factored
    subspaces    effective rank, principal angles, overlap      composition  composition, copying

>>> from headtools import geometry
>>> import headtools as ht
>>> model, _ = ht.load()
>>> geometry.effective_rank(geometry.ov(model))["encoder", 0, 0] < 16
True

Weights say what a head could do. Where it looks and whether that is worth anything, only maps and interventions say.
"""

from headtools.geometry.subspaces import (
    Circuits,
    Factored,
    Levels,
    composition,
    copying,
    cosine,
    effective_rank,
    ov,
    overlap,
    principal_angles,
    qk,
    random_like,
    untrained,
)

__all__ = ["Circuits", "Factored", "Levels", "composition", "copying", "cosine", "effective_rank", "ov", "overlap",
           "principal_angles", "qk", "random_like", "untrained"]  # fmt: skip
