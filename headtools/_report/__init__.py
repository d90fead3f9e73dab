"""One page on the heads of a model: what is measured, the figures, and the page itself."""
