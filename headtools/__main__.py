"""``python -m headtools``: see :mod:`headtools.cli`."""

from headtools.cli import main

raise SystemExit(main())
