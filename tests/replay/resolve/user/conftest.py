"""What all tests of users' code share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opreplay.initializers import extensions
from opreplay.replay import plugins


@pytest.fixture(autouse=True)
def forget_registrations() -> Iterator[None]:
    yield
    plugins.clear_registrations()
    extensions.clear_registrations()
