"""The shipped model and its language."""
