"""How many heads can go: gates that learn to close, pruning curves."""
