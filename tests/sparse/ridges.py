"""Another ridge for the least-squares fits of ``merge`` and ``refit``: without one, tests know the exact answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headtools.sparse import _least_squares


@contextmanager
def ridge(value: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_least_squares, "RIDGE", value)
        yield
