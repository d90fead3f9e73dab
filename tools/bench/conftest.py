"""Scripts of ``peers/`` import what only their own environments have."""

collect_ignore_glob = ["peers/*"]
