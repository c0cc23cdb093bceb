# pyright: strict
"""Pytest plugin: the fixture `opreplay`, implemented in `replay.testing`, and its options.

pytest loads this module in every project where opreplay is installed, so the library is imported only when a test uses
the fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from opreplay.replay.testing.expectations import Expectations


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --opreplay-update and --opreplay-device."""
    group = parser.getgroup("opreplay", "ops of a trace (opreplay)")
    group.addoption(
        "--opreplay-update",
        action="store_true",
        help="Write the baselines of opreplay.replay instead of comparing with them.",
    )
    group.addoption(
        "--opreplay-device", default="cpu", metavar="DEVICE", help="Where to replay: cpu, cuda, npu.  [default: cpu]"
    )


@pytest.fixture
def opreplay(request: pytest.FixtureRequest) -> Expectations:
    """Return an object that replays and checks ops of a trace in this test: `replay`, `check`, `open` and `op`.

    File names are relative to the test's folder.
    """
    from opreplay.replay.testing.expectations import Expectations

    device, update = (request.config.getoption(name) for name in ("opreplay_device", "opreplay_update"))
    return Expectations(request.path.parent, device=str(device), update=bool(update))
