# pyright: strict
"""Clusters of simulated devices: `2x8x910b3`, or a TOML file with the links inside and between servers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from opreplay.replay.ascend.devices.file import MAX_FILE_BYTES, load_device
from opreplay.replay.ascend.profile import Cluster, ClusterLink, DeviceProfile, Quantity
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.folders import read_regular
from opreplay.traces.toml_text import parse_toml

MAX_DIES = 1 << 20
_SHORT = re.compile(r"(?:(\d{1,7})x)?(\d{1,7})x([^x].*)", re.IGNORECASE)
HINT = "Write 2x8x910b3 (two servers of eight), 8x910b3, or the path of a .toml file; docs/collectives.md shows one."


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links of one network level, as written in a cluster file."""

    transport: str
    """HCCS, UB, SIO, RDMA, PCIE, or any other name. Predictions with another name are marked as extrapolated."""
    bytes_per_s: Quantity
    """Achieved bytes per second in one direction.

    In a mesh, this is the rate from a die to each other die. In other networks, it is the total rate of a die.
    """
    latency: Quantity
    mesh: bool = False


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster file."""

    schema_version: int
    soc: str
    servers: int
    dies: int
    """Dies per server."""
    name: str = ""
    inside: LinkEntry | None = None
    """Links inside a server. If it is None, the links given for the SoC are used."""
    between: LinkEntry | None = None


def load_cluster(text: str) -> tuple[str, Cluster]:
    """Return (name or path of the SoC, cluster). `text` is a description like `2x8x910b3`, or the path of a TOML file.

    Raises UsageError for text that does not describe a cluster, FormatError for an invalid file.
    """
    match = _SHORT.fullmatch(text.strip())
    if match is None or os.path.isfile(text):
        if text.lower().endswith(".toml"):
            return _from_file(text)
        raise UsageError(f"{text!r} is not a cluster", hint=HINT)
    servers, dies = int(match[1] or 1), int(match[2])
    _check(text, servers, dies)
    return match[3], Cluster(name=text.strip(), servers=servers, dies=dies)


def on_cluster(device: DeviceProfile, cluster: Cluster) -> DeviceProfile:
    """Return the device as a die of the cluster.

    The cluster's name is appended to the device's version, because clusters change predictions.
    """
    version = f"{device.version} in {cluster.name}"
    return msgspec.structs.replace(device, cluster=cluster, version=version)


def devices_on(names: tuple[str, ...], text: str) -> list[DeviceProfile]:
    """Return the cluster's SoC and the other named devices, each as a die of the cluster."""
    soc, cluster = load_cluster(text)
    devices = {device.name: device for device in map(load_device, (soc, *names))}
    return [on_cluster(device, cluster) for device in devices.values()]


def _from_file(path: str) -> tuple[str, Cluster]:
    try:
        content = read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=HINT) from None
    try:
        file = msgspec.convert(parse_toml(content), ClusterFile)
    except ValueError as error:  # msgspec's errors are some
        raise FormatError(f"{path}: {error}", hint="docs/collectives.md shows a complete file.") from None
    if file.schema_version != 1:
        raise FormatError(f"{path}: schema_version is {file.schema_version}, but this opreplay reads 1")
    _check(path, file.servers, file.dies)
    return file.soc, Cluster(
        name=file.name or Path(path).stem,
        servers=file.servers,
        dies=file.dies,
        inside=None if file.inside is None else _link(path, "inside", file.inside),
        between=None if file.between is None else _link(path, "between", file.between),
    )


def _link(path: str, where: str, entry: LinkEntry) -> ClusterLink:
    for name, quantity, unit in (("bytes_per_s", entry.bytes_per_s, "byte/s"), ("latency", entry.latency, "us")):
        if quantity.unit != unit:
            raise FormatError(f"{path}: {where}.{name} has unit {quantity.unit!r}, expected {unit!r}")
        if quantity.value < 0 or (name == "bytes_per_s" and quantity.value == 0):
            raise FormatError(f"{path}: {where}.{name} must be above 0, but is {quantity.value}")
    return ClusterLink(
        transport=entry.transport[:40].upper(),
        bytes_per_s=entry.bytes_per_s.value,
        latency_us=entry.latency.value,
        mesh=entry.mesh,
    )


def _check(where: str, servers: int, dies: int) -> None:
    if not (servers >= 1 and dies >= 1 and servers * dies <= MAX_DIES):
        raise UsageError(
            f"{where}: invalid size: {servers} servers of {dies} dies",
            hint=f"A cluster has 1 to {MAX_DIES:,} dies in total.",
        )
