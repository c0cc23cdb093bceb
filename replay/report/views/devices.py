# pyright: strict
"""The simulated devices as tables and as JSON: every number with its unit, source and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opreplay.replay.ascend import DeviceProfile
from opreplay.replay.ascend.cost.nearby import sizes_at
from opreplay.replay.ascend.devices.file import canonical_name, load_file, load_model
from opreplay.replay.ascend.profile import FamilyCost, Quantity
from opreplay.replay.report.columns import GAP, plain_table
from opreplay.replay.report.text import digits, safe

GB = 1e9
MIB = float(1 << 20)


def peak_tflops(device: DeviceProfile, dtype: str) -> float:
    """Peak of the cube cores in 10¹² operations a second: 2 × MAC per cycle per core × cores × clock."""
    return 2 * device.macs_per_cycle[dtype] * device.aic_cores * device.freq_hz / 1e12


def calibrated_families(device: DeviceProfile) -> tuple[int, int]:
    """Kernel families measured on this SoC, and all."""
    return sum(bool(family.samples) for family in device.families.values()), len(device.families)


COLUMNS = ("device", "cube", "vector", "MHz", "fp16 TFLOP/s", "HBM GB", "GB/s", "L2 MiB", "calibrated")
GIVE_WAY = ("MHz", "L2 MiB", "vector", "cube", "HBM GB", "GB/s", "calibrated")
"""Columns that go where room is short, first those that go first."""


def overview(devices: Sequence[DeviceProfile], width: int) -> RenderableType:
    """One row a device, as many columns as there is room for; those that are left out are named below."""
    rows = [_row(device) for device in devices]
    widest = [max(map(cell_len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    shown, left_out = list(range(len(COLUMNS))), list[str]()
    for title in GIVE_WAY:
        if sum(widest[i] for i in shown) + GAP * len(shown) > width:
            shown.remove(COLUMNS.index(title))
            left_out.append(title)
    table = plain_table()
    for i in shown:
        table.add_column(COLUMNS[i], justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[i], style="" if i else "bold") for i in shown))
    parts: list[RenderableType] = [table, Text()]
    if left_out:
        text = f"no room at {width} columns for {', '.join(left_out)}; --format json holds all"
        parts.append(Text(text, style="dim", overflow="fold"))
    hint = Text("`opreplay devices --show NAME` says where each number comes from", style="dim", overflow="fold")
    return Group(*parts, hint)


def _row(device: DeviceProfile) -> tuple[str, ...]:
    have, total = calibrated_families(device)
    return (
        safe(device.name),
        str(device.aic_cores),
        str(device.aiv_cores),
        f"{device.freq_hz / 1e6:.0f}",
        digits(peak_tflops(device, "float16")),
        f"{device.hbm_bytes / GB:.0f}",
        f"{device.hbm_bytes_per_s / GB:.0f}",
        f"{device.l2_bytes / MIB:.0f}",
        f"{have} of {total}",
    )


def details(device: DeviceProfile) -> RenderableType:
    """Every number of one device, grouped."""
    have, total = calibrated_families(device)
    title = Text.assemble(
        (safe(device.title), "bold"),
        f" ({safe(device.name)}, version {safe(device.version)}): ",
        f"{have} of {total} kernel families calibrated on it",
    )
    parts: list[RenderableType] = [
        title,
        Text(),
        Text("Datasheet", style="bold"),
        _quantities(device.datasheet.items()),
    ]
    rates = _rates(device).items()
    return Group(
        *parts, Text(), Text("Rates of the cost model", style="bold"), _quantities(rates), Text(), _families(device)
    )


def facts(device: DeviceProfile) -> dict[str, Any]:
    """What `details` shows, as JSON-safe values."""
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
        kind: [{"sizes": sizes_at(one[:3], family.form), "pull": one[3]} for one in neighbours]
        for kind, neighbours in family.nearby.items()
    }
    return {**msgspec.to_builtins(family), "nearby": nearby}


def file_text(name_or_path: str) -> str:
    """The TOML text of a device file. Raises UsageError for an unknown device, FormatError for a damaged file."""
    file = load_file(name_or_path)
    if canonical_name(name_or_path) is None:
        return Path(name_or_path).read_text(encoding="utf-8")
    folder = resources.files("opreplay.replay.ascend.devices")
    return (folder / f"{file.name}.toml").read_text(encoding="utf-8")


def _rates(device: DeviceProfile) -> dict[str, Quantity]:
    """Rates with their sources: the shared model's, or the shipped device's own where it has them."""
    known = canonical_name(device.name)
    own = load_file(known).rates if known else {}
    shared = {**load_model().rates, **own}
    values = msgspec.structs.asdict(device.rates)
    return {
        name: quantity
        if quantity.value == values[name]
        else msgspec.structs.replace(quantity, value=values[name], source="the device file", confidence="assumed")
        for name, quantity in shared.items()
    }


def _quantities(items: Iterable[tuple[str, Quantity]]) -> RenderableType:
    """One row a number; sources, which are long and repeat, as footnotes."""
    table = plain_table()
    table.add_column("name", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("confidence", no_wrap=True)
    table.add_column("source", justify="right", no_wrap=True, style="dim")
    sources: dict[str, int] = {}
    for name, quantity in items:
        number = sources.setdefault(quantity.source, len(sources) + 1)
        cells = (name, _number(quantity.value), quantity.unit, quantity.confidence, f"[{number}]")
        table.add_row(*(Text(safe(cell)) for cell in cells))
    grid = Table.grid(padding=(0, 1))
    for source, number in sources.items():
        grid.add_row(Text(f"[{number}]", style="dim"), Text(safe(source), style="dim", overflow="fold"))
    return Group(table, grid)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _families(device: DeviceProfile) -> Table:
    """Kernel families with how well each is known here."""
    table = plain_table()
    table.add_column("kernel family", no_wrap=True)
    table.add_column("form", no_wrap=True)
    for title in ("measured here", "elsewhere", "80 % band"):
        table.add_column(title, justify="right", no_wrap=True)
    for family in sorted(device.families.values(), key=lambda f: (-f.samples, f.name)):
        cells = (family.name, family.form, str(family.samples), str(family.samples_elsewhere), f"× {family.band:.2f}")
        table.add_row(*(Text(safe(cell)) for cell in cells))
    return table
