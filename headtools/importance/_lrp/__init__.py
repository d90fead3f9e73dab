"""Layer-wise relevance propagation: formulas (``rules``), and what function of torch follows which (``operations``)."""
