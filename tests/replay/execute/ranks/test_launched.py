"""What launchers say of a process, in their own variables."""

from __future__ import annotations

import pytest

from opreplay.replay.execute.ranks.launched import DEFAULT_PORT, launcher_settings
from opreplay.traces.errors import EnvironmentRefused

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}


def test_torchrun_and_slurm() -> None:
    one = launcher_settings({**TORCHRUN, "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert one is not None
    assert (one.rank, one.world, one.local_rank, one.local_world, one.port, one.hosted) == (3, 8, 1, 2, 29400, True)
    other = launcher_settings({**SLURM, "SLURM_NTASKS_PER_NODE": "4(x2)"})
    assert other is not None
    assert (other.rank, other.local_world, other.address, other.port) == (5, 4, "10.0.0.1", DEFAULT_PORT)
    assert not other.hosted
    uneven = launcher_settings({**SLURM, "SLURM_TASKS_PER_NODE": "3,5"})
    assert uneven is not None
    assert uneven.local_world == 3


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR"])
def test_a_process_that_nobody_launched(missing: str) -> None:
    assert launcher_settings({key: value for key, value in TORCHRUN.items() if key != missing}) is None
    assert launcher_settings({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("wrong", [{"RANK": "first"}, {"RANK": "9"}, {"MASTER_PORT": "-1"}])
def test_variables_that_make_no_sense(wrong: dict[str, str]) -> None:
    with pytest.raises(EnvironmentRefused):
        launcher_settings({**TORCHRUN, **wrong})
