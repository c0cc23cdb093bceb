# pyright: strict
"""Facts about this machine that show whether results are comparable.

They contain no host names, paths, addresses or user names.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")
CPUS = Path("/sys/devices/system/cpu")
RESERVE = 0.9
"""Maximum share of the free memory that one op may take, even without limits."""


def host_facts() -> dict[str, object]:
    """Return CPU, memory, clock and load of the host. Values that cannot be read are left out."""
    facts: dict[str, object] = {
        "opreplay": opreplay_version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "boost": _read("/sys/devices/system/cpu/cpufreq/boost"),
        "memory_bytes": total_memory_bytes(),
        "memory_free_bytes": free_memory_bytes(),
    }
    if hasattr(os, "getloadavg"):
        facts["load_1min"] = round(os.getloadavg()[0], 2)
    return {key: value for key, value in facts.items() if value is not None}


def opreplay_version() -> str:
    """Return the version of the installed distribution, or "unknown" if run from a bare checkout."""
    from importlib import metadata

    try:
        return metadata.version("opreplay")
    except metadata.PackageNotFoundError:
        return "unknown"


def cpu_model() -> str:
    """Return the CPU name reported by the kernel."""
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def free_memory_bytes() -> int | None:
    """Return the memory available without swapping, within the limit of this process's control group."""
    available = _kernel_bytes("/proc/meminfo", "MemAvailable")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is None:
        return available
    inside = max(0, limit - (used or 0))
    return inside if available is None else min(available, inside)


def total_memory_bytes() -> int | None:
    """Return the machine's memory, or the limit of this process's control group if that is lower."""
    known = [size for size in (_kernel_bytes("/proc/meminfo", "MemTotal"), _cgroup("memory.max")) if size is not None]
    return min(known, default=None)


def default_op_bytes() -> int:
    """Return the default memory limit of an op: half of the free memory, or 1 GB if the system does not report it."""
    free = free_memory_bytes()
    return 10**9 if free is None else free // 2


def last_cache_bytes() -> int:
    """Return the size of the CPU's largest data cache, or 0 if the system does not report it."""
    sizes = [0]
    for path in (CPUS / "cpu0" / "cache").glob("index*/size"):
        text = _read(path) or ""
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        number = text.rstrip("KMG")
        sizes.append(int(number) * unit if number.isdigit() else 0)
    return max(sizes)


def throttle_events() -> int:
    """Return how often the CPU was throttled for heat since it started, or 0 if the system does not count it."""
    text = _read(CPUS / "cpu0" / "thermal_throttle" / "core_throttle_count")
    return int(text) if text is not None and text.isdigit() else 0


def process_bytes(field: str = "VmData") -> int | None:
    """Return a memory field of this process from /proc/self/status, or None if it is missing."""
    return _kernel_bytes("/proc/self/status", field)


def kills_for_memory() -> int | None:
    """Return how many processes of this control group the kernel has killed because memory ran out.

    If the group has no count, the count is that of the whole machine. Returns None if the system does not count killed
    processes.
    """
    groups = [line.split(":", 2)[1:] for line in (_read("/proc/self/cgroup") or "").splitlines() if line.count(":") > 1]
    mine = {controllers: path.lstrip("/") for controllers, path in groups}
    files = [
        *(CGROUP / path / "memory.events" for path in (mine.get("", ""), "")),
        *(CGROUP / "memory" / path / "memory.oom_control" for path in (mine.get("memory", ""), "")),
        VMSTAT,
    ]
    for file in files:
        for line in (_read(file) or "").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _kernel_bytes(path: str, field: str) -> int | None:
    """Return in bytes a field that the kernel reports in kB, from a file with one field per line."""
    for line in (_read(path) or "").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup(name: str) -> int | None:
    """Return a number from the control group that this process sees as its root.

    Returns None for "max" or a missing file.
    """
    text = _read(CGROUP / name)
    return int(text) if text is not None and text.isdigit() else None
