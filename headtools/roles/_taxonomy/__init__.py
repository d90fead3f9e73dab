"""The steps of taxonomy(), from sentences to a table; the path of one batch is at the top of ``roles/taxonomy.py``."""
