"""Layer-wise relevance propagation, operation by operation, on any PyTorch model.

rules        which rule each kind of operation follows, and the rules as formulas
operations   which function of torch follows which rule, and the context that makes it so: ``with rules("attnlrp"):``

The passes over a model, and what becomes of them, are in ``headtools.importance.relevance``.
"""
