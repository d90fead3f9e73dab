"""Where the organism, a guest of the package, has been shown the door, there is nothing to test here."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("headtools.organism") else ["test_*.py"]
