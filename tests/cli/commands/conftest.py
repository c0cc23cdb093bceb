"""What all tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opreplay.initializers import extensions
from opreplay.replay import plugins
from opreplay.replay.ascend.custom import estimators


@pytest.fixture(autouse=True)
def forget_registrations() -> Iterator[None]:
    """What a test's plugin registers in this process is there for no other test."""
    yield
    plugins.clear_registrations()
    extensions.clear_registrations()
    estimators.clear_registrations()
