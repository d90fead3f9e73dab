"""Find, see, switch and cut the heads of any model."""
