"""Read facts about the profiled run (device, vendor, torch version, rank) from the trace's top-level keys."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from opreplay.traces.model import MetadataLevel, OpSignature
from opreplay.traces.reading.decoding import NOT_JSON

Vendor = Literal["nvidia", "amd", "ascend", "mtia", "intel", "cpu"]

ERAS: dict[str, str] = {
    "A": ">=1.8,<1.11",
    "B": ">=1.11,<1.13",
    "C": ">=1.13,<2.2",
    "D": ">=2.1,<2.4",
    "E": ">=2.3",
    "F": ">=2.4",
}
"""Letter of the trace format ("era") → range of torch versions, from 96 public traces (docs/trace-reading.md)."""

_VENDOR_NAMES: tuple[tuple[re.Pattern[str], Vendor], ...] = (
    (re.compile("nvidia|tesla|geforce|quadro", re.IGNORECASE), "nvidia"),
    (re.compile("amd|instinct|radeon", re.IGNORECASE), "amd"),
    (re.compile("ascend", re.IGNORECASE), "ascend"),
    (re.compile("artemis|mtia", re.IGNORECASE), "mtia"),
    (re.compile("intel", re.IGNORECASE), "intel"),
    (re.compile(r"\b(?:[ABHLVT]\d{1,3}|GB?\d{3}|GH200|RTX)", re.IGNORECASE), "nvidia"),
)


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the trace's top-level keys; None for missing facts."""

    device_names: tuple[str, ...]
    vendor: Vendor | None
    torch_version: str | None
    world_size: int | None
    rank: int | None
    backend: str | None
    base_ns: int
    process_groups: int


def run_facts(keys: dict[str, bytes], features: set[str], *, has_kernels: bool, ascend: bool) -> RunFacts:
    """Return the facts about the run; values of an unexpected type count as missing."""
    values = {key: _decode(raw) for key, raw in keys.items() if len(raw) < 8 << 20}
    devices = [d for d in _list(values.get("deviceProperties")) if isinstance(d, dict)]
    names = tuple(dict.fromkeys(name for device in devices if (name := _name_of(device))))
    info = values.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    backend = info.get("backend")
    version = next((values[k] for k in ("pytorch_version", "torch_version") if isinstance(values.get(k), str)), None)
    return RunFacts(
        device_names=names,
        vendor="ascend" if ascend else _vendor(names, devices, values, features, has_kernels=has_kernels),
        torch_version=version[:80] if version else None,
        world_size=_count(info.get("world_size")),
        rank=_count(info.get("rank")),
        backend=backend[:40] if isinstance(backend, str) else None,
        base_ns=_count(values.get("baseTimeNanoseconds")) or 0,
        process_groups=_process_groups(info.get("pg_config")),
    )


_UNNAMED = {
    ((9, 4), 304, 192): "AMD Instinct MI300X by its properties",
    ((9, 4), 304, 256): "AMD Instinct MI325X by its properties",
}
"""Names of devices that ROCm left unnamed, by (compute capability, compute units, memory in GiB).

The properties come from data sheets and from traces in which ROCm does name the device.
"""


def _name_of(device: dict[str, Any]) -> str:
    """Return a device's recorded name, otherwise the only name that fits its properties, otherwise ""."""
    name, memory = device.get("name"), device.get("totalGlobalMem")
    if isinstance(name, str) and name:
        return name[:200]
    if not isinstance(memory, int):
        return ""
    arch = device.get("computeMajor"), device.get("computeMinor")
    facts = arch, device.get("numSms"), round(memory / 2**30)
    return next((known for key, known in _UNNAMED.items() if key == facts), "")


def _process_groups(listed: object) -> int:
    """Return the number of listed groups, counting groups with the same members once; 0 if none are listed."""
    members = (group.get("ranks", group.get("pg_name")) for group in _list(listed) if isinstance(group, dict))
    return len({msgspec.json.encode(group) for group in members})


def _vendor(
    names: tuple[str, ...],
    devices: list[dict[str, Any]],
    keys: dict[str, Any],
    features: set[str],
    *,
    has_kernels: bool,
) -> Vendor | None:
    for name in names:
        for pattern, vendor in _VENDOR_NAMES:
            if pattern.search(name):
                return vendor
    # AMD device names may be empty: its wavefronts are 64 wide, and its keys say hip or roctracer.
    warps = [device.get("warpSize") for device in devices]
    evidence: tuple[tuple[bool, Vendor | None], ...] = (
        (64 in warps or any(key.startswith(("hip_", "roctracer", "rocm")) for key in keys), "amd"),
        (32 in warps or any(key.startswith(("cuda_", "cupti")) for key in keys), "nvidia"),
        ("mtia" in features, "mtia"),
        ("hip" in features, "amd"),
        ("cuda" in features, "nvidia"),
        (has_kernels, None),
        (True, "cpu"),
    )
    return next(vendor for tells, vendor in evidence if tells)


def era_of(features: set[str], keys: dict[str, bytes], *, op_category: str, level: MetadataLevel) -> str | None:
    """Return the letter in `ERAS` of the trace's format, inferred from what the profiler wrote; None if unknown."""
    if op_category == "Operator":
        return "A"
    if "event index" in features:
        return "B"
    if level == "full" or "strides" in features:
        return "F"
    if level == "dims+concrete" or "baseTimeNanoseconds" in keys:
        return "E"
    if "record function id" in features:
        return "D"
    return "C" if "ev idx" in features else None


def metadata_level(signatures: tuple[OpSignature, ...]) -> MetadataLevel:
    """Return the most detailed level of argument metadata that any op of the trace has."""
    if any(s.strides is not None for s in signatures):
        return "full"
    if any(s.concrete is not None for s in signatures):
        return "dims+concrete"
    return "dims" if any(s.dims is not None for s in signatures) else "none"


def _decode(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except NOT_JSON:
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if type(value) is int and value >= 0 else None
