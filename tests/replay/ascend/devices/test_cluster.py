"""Clusters as text and as files: how many dies, which links, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.ascend.cost.collective import levels_of
from opreplay.replay.ascend.devices.cluster import devices_on, load_cluster
from opreplay.traces.errors import FormatError, UsageError

FILE = """
schema_version = 1
soc = "910b3"
servers = 4
dies = 8

[between]
transport = "RDMA"
bytes_per_s = { value = 12e9, unit = "byte/s", source = "measured here", confidence = "measured" }
latency = { value = 20.0, unit = "us", source = "measured here", confidence = "measured" }
"""


def test_short_form() -> None:
    soc, cluster = load_cluster("2x8x910b3")
    assert (soc, cluster.servers, cluster.dies) == ("910b3", 2, 8)
    assert load_cluster("4x910c")[1].servers == 1


@pytest.mark.parametrize("text", ["910b3", "0x8x910b3", "2x8x", "axbxc", "99999x99999x910b3", "missing.toml"])
def test_what_is_no_cluster_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as error:
        devices_on((), text)
    assert error.value.hint


def test_a_file_gives_its_own_links(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(FILE)
    (device,) = devices_on((), str(path))
    inner, outer = levels_of(32, device)
    assert (inner.dies, inner.transport, outer.dies) == (8, "HCCS", 4)
    assert outer.link.bytes_per_s == 12e9
    assert "ours" in device.version


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("schema_version = 1", "schema_version = 9"), "schema_version"),
        (('unit = "us"', 'unit = "ms"'), "between.latency"),
        (("value = 12e9", "value = 0.0"), "above 0"),
        (("servers = 4", "racks = 4"), "racks"),
        (("servers = 4", "servers = ="), "ours.toml"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(FILE.replace(*change))
    with pytest.raises(FormatError, match=said):
        devices_on((), str(path))


def test_the_ranks_of_a_group_decide_which_links_it_uses() -> None:
    (device,) = devices_on((), "2x8x910b3")
    (within,) = levels_of(4, device, ranks=(0, 1, 2, 3))
    (apart,) = levels_of(2, device, ranks=(0, 8))
    both = levels_of(4, device, ranks=(0, 1, 8, 9))
    assert (within.transport, apart.transport) == ("HCCS", "RDMA")
    assert [level.dies for level in both] == [2, 2]
    assert [level.dies for level in levels_of(64, device)] == [8, 2]  # no more than there are
