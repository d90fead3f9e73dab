"""What the notebooks show and ask."""
