"""``python -m headtools``: see :mod:`headtools.command`."""

from headtools.command import main

raise SystemExit(main())
