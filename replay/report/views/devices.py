# pyright: strict
"""The simulated devices as tables and as JSON: every number with its unit, source and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from opreplay.replay.ascend import DeviceProfile
from opreplay.replay.ascend.cost.cells import HELD
from opreplay.replay.ascend.cost.nearby import sizes_at
from opreplay.replay.ascend.devices.file import MAX_FILE_BYTES, canonical_name, load_file, load_model
from opreplay.replay.ascend.devices.fitted import counts_of, shipped_rows
from opreplay.replay.ascend.devices.text import shipped_text
from opreplay.replay.ascend.profile import FamilyCost, Quantity
from opreplay.replay.report.table import COUNT, Column, Table, Unit, terminal
from opreplay.replay.report.text import digits, safe, share_text
from opreplay.replay.report.view import View
from opreplay.traces.folders import read_regular

GB = 1e9
MIB = float(1 << 20)


def peak_tflops(device: DeviceProfile, dtype: str) -> float:
    """Return the peak of the cube cores in TFLOP/s: 2 × MACs per cycle per core × cores × clock."""
    return 2 * device.macs_per_cycle[dtype] * device.aic_cores * device.freq_hz / 1e12


def measured_types(device: DeviceProfile) -> tuple[int, int]:
    """Return how many kernel types were measured on this SoC, and how many on any SoC."""
    families = device.families.values()
    here = sum(len(set(family.measured_here)) for family in families)
    return here, sum(len({*family.measured_here, *family.measured_elsewhere}) for family in families)


_OfDevice = Column[DeviceProfile]
_UNIT = Unit(lambda value: f"{value:.0f}")
COLUMNS = [
    _OfDevice("device", lambda device: device.name, style="bold"),
    _OfDevice("cube", lambda device: device.aic_cores, COUNT, drop=4),
    _OfDevice("vector", lambda device: device.aiv_cores, COUNT, drop=5),
    _OfDevice("MHz", lambda device: device.freq_hz / 1e6, _UNIT, drop=7),
    _OfDevice("fp16 TFLOP/s", lambda device: peak_tflops(device, "float16"), Unit(digits)),
    _OfDevice("HBM GB", lambda device: device.hbm_bytes / GB, _UNIT, drop=3),
    _OfDevice("GB/s", lambda device: device.hbm_bytes_per_s / GB, _UNIT, drop=2),
    _OfDevice("L2 MiB", lambda device: device.l2_bytes / MIB, _UNIT, drop=6),
    _OfDevice("measured", lambda device: "{} of {}".format(*measured_types(device)), right=True, drop=1),
]


def view(devices: Sequence[DeviceProfile]) -> View:
    """Return all devices in every output format."""
    return View(render=lambda width: overview(devices, width), facts=lambda: list(map(facts, devices)))


def view_of_one(device: DeviceProfile) -> View:
    """Return each number of one device in every output format."""
    return View(render=lambda width: details(device), facts=lambda: facts(device))


def overview(devices: Sequence[DeviceProfile], width: int) -> RenderableType:
    """Render one row per device, with as many columns as fit. Dropped columns are listed below."""
    n = counts_of(shipped_rows())
    fitted = f"fitted: {n['shared']} constants for all devices, {n['of_single_devices']} for single devices"
    lines = (
        *held_lines(),
        f"{fitted}; in addition, {n['pulls']} measured kernels correct predictions of similar sizes",
        "for the source of each number, use `opreplay list devices NAME`",
    )
    hints = [Text(line, style="dim", overflow="fold") for line in lines]
    return Group(*terminal(Table("Devices", COLUMNS, devices), width)[1:], Text(), *hints)


def held_lines() -> list[str]:
    """Return how often measurements were in the 80 % bands of blind predictions.

    These predate the model's fit to the measurements.
    """
    titles = {"this SoC": "ops measured on the SoC", "its family": "ops never measured"}
    return [
        f"measurements inside the 80 % band in blind tests, {titles[evidence]}: "
        + ", ".join(f"{work} {share_text(share)} of {calls} calls" for work, (calls, share) in of.items())
        for evidence, of in HELD.items()
    ]


def details(device: DeviceProfile) -> RenderableType:
    """Render every number of one device, grouped."""
    have, total = measured_types(device)
    title = Text.assemble(
        (safe(device.title), "bold"),
        f" ({safe(device.name)}, version {safe(device.version)}): ",
        f"measured here: {have} of the {total} kernel types measured on any device",
    )
    parts: list[RenderableType] = [
        title,
        Text(),
        Text("Datasheet", style="bold"),
        _quantities(device.datasheet.items()),
    ]
    rates = _rates(device).items()
    parts += [Text(), Text("Rates of the cost model", style="bold"), _quantities(rates)]
    return Group(*parts, *terminal(_families(device)))


def facts(device: DeviceProfile) -> dict[str, Any]:
    """Return the contents of `details` as JSON-safe values."""
    return {
        "name": device.name,
        "title": device.title,
        "version": device.version,
        "aliases": device.aliases,
        "datasheet": msgspec.to_builtins(device.datasheet),
        "rates": msgspec.to_builtins(_rates(device)),
        "families": {name: _family_facts(family) for name, family in device.families.items()},
    }


def _family_facts(family: FamilyCost) -> dict[str, Any]:
    nearby = {
        kind: [{"sizes": sizes_at(neighbour[:3], family.form), "pull": neighbour[3]} for neighbour in neighbours]
        for kind, neighbours in family.nearby.items()
    }
    return {**msgspec.to_builtins(family), "nearby": nearby}


def file_text(name_or_path: str) -> str:
    """Return the TOML text of a device file. Raises UsageError for an unknown device, FormatError for a damaged
    file.
    """
    file = load_file(name_or_path)
    if canonical_name(name_or_path) is None:
        return read_regular(name_or_path, MAX_FILE_BYTES).decode()
    return shipped_text(file.name)


def _rates(device: DeviceProfile) -> dict[str, Quantity]:
    """Return rates with their sources. Rates of the shipped device itself take the place of the shared model's."""
    known = canonical_name(device.name)
    of_device = load_file(known).rates if known else {}
    shared = {**load_model().rates, **of_device}
    values = msgspec.structs.asdict(device.rates)
    return {
        name: quantity
        if quantity.value == values[name]
        else msgspec.structs.replace(quantity, value=values[name], source="the device file", confidence="assumed")
        for name, quantity in shared.items()
    }


def _quantities(items: Iterable[tuple[str, Quantity]]) -> RenderableType:
    """Render one row per number, with sources as footnotes because they are long and repeat."""
    rows = list(items)
    numbers = {source: place for place, source in enumerate(dict.fromkeys(quantity.source for _, quantity in rows), 1)}
    column = Column[tuple[str, Quantity]]
    columns = [
        column("name", lambda row: row[0]),
        column("value", lambda row: row[1].value, Unit(_number)),
        column("unit", lambda row: row[1].unit),
        column("confidence", lambda row: row[1].confidence),
        column("source", lambda row: f"[{numbers[row[1].source]}]", right=True, style="dim"),
    ]
    grid = RichTable.grid(padding=(0, 1))
    for source, number in numbers.items():
        grid.add_row(Text(f"[{number}]", style="dim"), Text(safe(source), style="dim", overflow="fold"))
    return Group(*terminal(Table("Quantities", columns, rows))[1:], grid)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _families(device: DeviceProfile) -> Table[FamilyCost]:
    """Return kernel families with the confidence of each on this device."""
    column = Column[FamilyCost]
    columns = [
        column("kernel family", lambda family: family.name),
        column("form", lambda family: family.form),
        column("measured here", lambda family: family.samples, COUNT),
        column("elsewhere", lambda family: family.samples_elsewhere, COUNT),
    ]
    return Table("Families", columns, sorted(device.families.values(), key=lambda f: (-f.samples, f.name)))
