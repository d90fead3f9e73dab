"""What heads attend to and carry: corpora, roles, the taxonomy, probes, induction; each beside its baseline."""
