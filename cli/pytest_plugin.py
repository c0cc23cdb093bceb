# pyright: strict
"""The pytest plugin: the fixture `opreplay` and its options; what it gives is `replay.testing`'s.

pytest loads it in every project where opreplay is installed: the library is imported when a test asks for the fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from opreplay.replay.testing.expectations import Expectations


def pytest_addoption(parser: pytest.Parser) -> None:
    """--opreplay-update and --opreplay-device."""
    group = parser.getgroup("opreplay", "ops of a trace (opreplay)")
    group.addoption(
        "--opreplay-update", action="store_true", help="Write the baselines of opreplay.replay in place of comparing."
    )
    group.addoption(
        "--opreplay-device", default="cpu", metavar="DEVICE", help="Where to replay: cpu, cuda, npu.  [default: cpu]"
    )


@pytest.fixture
def opreplay(request: pytest.FixtureRequest) -> Expectations:
    """Ops of a trace in this test: `replay`, `check`, `open` and `op`; files are named from the test's folder."""
    from opreplay.replay.testing.expectations import Expectations

    device, update = (request.config.getoption(name) for name in ("opreplay_device", "opreplay_update"))
    return Expectations(request.path.parent, device=str(device), update=bool(update))
