# pyright: strict
"""Report on what this machine can replay: versions, devices, optional libraries and vendor libraries.

It installs nothing. Libraries other than torch are found without importing them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys

import msgspec

from opreplay.replay.host.libraries import LIBRARIES
from opreplay.replay.host.needs_torch import INSTALL_TORCH, TORCH_AT_LEAST
from opreplay.traces.reading.native.blocks import compiled_scanner

PYTHON_AT_LEAST = (3, 10)

OPTIONAL: dict[str, str] = {
    "isal": "reads gzip two to three times as fast",
    "ray": "replays on more than one machine",
    "pyarrow": "writes results as Parquet",
}
"""Optional module → its benefit."""

VENDOR: tuple[str, ...] = tuple(library.name for library in LIBRARIES if library.common)
"""Modules whose ops occur in traces; `opreplay doctor` looks for them."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    name: str
    found: str
    """Version or description; "" if missing."""
    ok: bool
    required: bool = False
    note: str = ""


def check_python() -> Check:
    """Check the Python interpreter."""
    ok = sys.version_info[:2] >= PYTHON_AT_LEAST
    note = "" if ok else f"opreplay needs {'.'.join(map(str, PYTHON_AT_LEAST))} or newer"
    return Check(name="python", found=platform.python_version(), ok=ok, required=True, note=note)


def check_torch() -> Check:
    """Check torch by importing it, because an existing installation may be broken."""
    try:
        import torch
    except (ImportError, OSError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Check(name="torch", found="", ok=False, required=True, note=f"{text}; {INSTALL_TORCH}")
    version = str(torch.__version__)
    ok = version_tuple(version) >= TORCH_AT_LEAST
    note = "" if ok else f"too old: {INSTALL_TORCH}"
    return Check(name="torch", found=version, ok=ok, required=True, note=note)


def check_reader() -> Check:
    """Check whether the compiled part of the trace reader was built."""
    if compiled_scanner() is not None:
        return Check(name="trace reader", found="compiled", ok=True)
    note = (
        "traces are read at only 35 to 80 % of full speed; install a C compiler and Python's headers, then reinstall "
        "opreplay"
    )
    return Check(name="trace reader", found="Python only", ok=False, note=note)


def version_tuple(text: str) -> tuple[int, ...]:
    """Return (2, 13) for "2.13.0+cpu"; () for text that is not a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else ()


def check_devices() -> list[Check]:
    """Return the devices that --device accepts: the CPU, and the devices that torch finds."""
    import torch

    checks = [Check(name="cpu", found=f"{torch.get_num_threads()} threads", ok=True)]
    for kind in ("cuda", "xpu", "npu", "mps"):
        backend = getattr(torch, kind, None)
        available = backend is not None and backend.is_available()
        name = getattr(backend, "get_device_name", None)
        names = (
            [str(name(i)) if name is not None else kind for i in range(backend.device_count())]
            if backend is not None and available
            else []
        )
        checks += [Check(name=f"{kind}:{i}", found=name, ok=True) for i, name in enumerate(names)]
        if not names and kind in ("cuda", "npu"):
            checks.append(Check(name=kind, found="", ok=False, note=f"--device {kind} cannot be used on this machine"))
    return checks


def check_libraries() -> list[Check]:
    """Find optional and vendor libraries without importing any of them."""
    checks = [check_reader(), *(_library(name, note) for name, note in OPTIONAL.items())]
    return checks + [_library(name, "reference implementations run instead, if available") for name in VENDOR]


def _library(module: str, note: str) -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(name=module, found="", ok=False, note=note)
    names = importlib.metadata.packages_distributions().get(module, [module])
    try:
        version = importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        version = "installed"
    return Check(name=module, found=version, ok=True)


def examine() -> dict[str, list[Check]]:
    """Run all checks, grouped by section; devices are left out if torch cannot be used."""
    base = [check_python(), check_torch()]
    sections = {"required": base}
    if all(check.ok for check in base):
        sections["devices"] = check_devices()
    return {**sections, "libraries": check_libraries()}
