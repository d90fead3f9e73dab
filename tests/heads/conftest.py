"""``references/make.py`` runs in an environment with transformers 4.57, and is no test."""

collect_ignore_glob = ["references/*"]
