# pyright: strict
"""Writes a calibrated device as TOML that `file` reads back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

from opreplay.replay.ascend.cost.nearby import sizes_at
from opreplay.replay.ascend.devices.file import (
    NUMBERS,
    SCHEMA_VERSION,
    datasheet_only,
    load_device,
    load_file,
    load_model,
    shared_pipes,
)
from opreplay.replay.ascend.devices.fitted import COUNTS, source_of
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, OwnMeasurement, Quantity, Rates, SlowPath

Constant = float | str | tuple[str, ...]
Constants = dict[str, Constant]


def _number(value: float) -> str:
    if value != int(value):
        value = float(f"{value:.5g}")
    if value == int(value) and abs(value) < 1e16:
        return f"{value:.1f}" if abs(value) < 1e6 else f"{value:.0f}.0"
    return repr(value)


def constant_text(name: str, value: Constant) -> str:
    """Return the text of a constant as written in device files."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:.0f}" if name in COUNTS else _number(value)


def _quantity(name: str, quantity: Quantity) -> str:
    return (
        f"{name} = {{ value = {_number(quantity.value)}, unit = {json.dumps(quantity.unit)}, "
        f"source = {json.dumps(quantity.source)}, confidence = {json.dumps(quantity.confidence)} }}\n"
    )


def fitted_rates(rates: Rates, defaults: Rates) -> dict[str, float]:
    """Return the rates that differ from the defaults."""
    values = {name: (getattr(rates, name), getattr(defaults, name)) for name in Rates.__struct_fields__}
    return {name: value for name, (value, default) in values.items() if not math.isclose(value, default, rel_tol=5e-5)}


def fitted_constants(family: FamilyCost, default: FamilyCost) -> Constants:
    """Return the constants of a family that differ from the defaults, without its neighbours."""
    values = {name: (getattr(family, name), getattr(default, name)) for name in NUMBERS}
    out: Constants = {k: v for k, (v, default) in values.items() if not math.isclose(v, default, rel_tol=5e-5)}
    if family.most_elements > 0:
        out |= {name: getattr(family, name) for name in ("least_elements", "most_elements", "dtypes")}
    if family.states:
        out["states"] = family.states
    for name in MEASURED:
        if types := getattr(family, name):
            out[name] = types
    return {**out, "samples": family.samples, "samples_elsewhere": family.samples_elsewhere}


MEASURED = ("measured_here", "measured_elsewhere")


def neighbours(family: FamilyCost) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield (kind, sizes, weight as text) of each measured neighbour of a family."""
    for kind, measured in family.nearby.items():
        for rows, columns, depth, pull in measured:
            yield kind, sizes_at((rows, columns, depth), family.form), f"{pull:.4f}"


def _family(family: FamilyCost, default: FamilyCost, source: str) -> str:
    lines = [f"[families.{family.name}]"]
    for name, value in fitted_constants(family, default).items():
        lines.append(f"{name} = {constant_text(name, value) if isinstance(value, float | int) else json.dumps(value)}")
    for name, text in source_of(family.samples, family.samples_elsewhere, source).items():
        lines.append(f"{name} = {json.dumps(text)}")
    by_kind: dict[str, list[str]] = {}
    for kind, sizes, pull in neighbours(family):
        by_kind.setdefault(kind, []).append(f"{{ sizes = {list(sizes)}, pull = {pull} }}")
    if by_kind:
        lines.append(f"[families.{family.name}.nearby]")
    lines += [f"{json.dumps(kind)} = [{', '.join(entries)}]" for kind, entries in by_kind.items()]
    return "\n".join(lines) + "\n"


def _slow_path(path: SlowPath) -> str:
    lines = ["[[slow_paths]]"]
    for name in SlowPath.__struct_fields__:
        value = getattr(path, name)
        if isinstance(value, float):
            lines.append(f"{name} = {_number(value)}")
        elif isinstance(value, str):
            lines.append(f"{name} = {json.dumps(value)}")
        else:
            shown = ", ".join(json.dumps(item) if isinstance(item, str) else _number(item) for item in value)
            lines.append(f"{name} = [{shown}]")
    return "\n".join(lines) + "\n"


def _measurement(row: OwnMeasurement) -> str:
    lines = ["[[measured]]"]
    for name in OwnMeasurement.__struct_fields__:
        value = getattr(row, name)
        shown = _number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{name} = {shown}")
    return "\n".join(lines) + "\n"


def measured_text(device: DeviceProfile, *, name: str, title: str, header: str) -> str:
    """Return the TOML text of a shipped device with a user's measured calls; the text refers to the device by name."""
    parts = [
        "".join(f"# {line}\n" for line in header.splitlines()),
        f"schema_version = {SCHEMA_VERSION}\nname = {json.dumps(name)}\ntitle = {json.dumps(title)}\n"
        f'version = "1"\nbase = {json.dumps(device.name)}\nbase_version = {json.dumps(device.version)}\n',
        *map(_measurement, device.measured),
    ]
    return "\n".join(parts)


def with_measured(text: str, device: DeviceProfile, *, name: str) -> str:
    """Return the text of a user's device file with another name and with the measured calls of `device`."""
    kept: list[str] = []
    section, is_named = "", False
    for line in text.splitlines():
        section = line.strip() if line.startswith("[") else section
        if section == "[[measured]]":
            continue
        if not section and not is_named and re.match(r"name\s*=", line):
            line, is_named = f"name = {json.dumps(name)}", True
        if not section and re.match(r"schema_version\s*=", line):
            line = f"schema_version = {SCHEMA_VERSION}"
        kept.append(line)
    return "\n".join(["\n".join(kept).strip("\n") + "\n", *map(_measurement, device.measured)])


def device_text(device: DeviceProfile, *, header: str, source: str) -> str:
    """Return the TOML text of a calibrated device.

    It contains the device's datasheet and what differs from the shared model. `header` becomes comment lines.
    """
    shared, model = load_model(), datasheet_only(device)
    parts = ["".join(f"# {line}\n" for line in header.splitlines())]
    aliases = ", ".join(json.dumps(a) for a in device.aliases)
    parts.append(
        f"schema_version = {SCHEMA_VERSION}\nname = {json.dumps(device.name)}\ntitle = {json.dumps(device.title)}\n"
        f"version = {json.dumps(device.version)}\naliases = [{aliases}]\n"
        f"generation = {json.dumps(device.generation)}\n"
    )
    rates = {
        name: Quantity(value=value, unit=shared.rates[name].unit, source=source, confidence="fitted")
        for name, value in fitted_rates(device.rates, model.rates).items()
    }
    sections = {"datasheet": device.datasheet, "rates": rates}
    if pipes := _pipes(device):
        sections["pipes"] = pipes
    for section, quantities in sections.items():
        parts.append("".join([f"[{section}]\n", *(_quantity(*named) for named in quantities.items())]))
    for name, family in device.families.items():
        parts.append(_family(family, model.families[name], source))
    parts += [_slow_path(path) for path in device.own_slow_paths]
    parts += map(_measurement, device.measured)
    return "\n".join(parts)


def _pipes(device: DeviceProfile) -> dict[str, Quantity]:
    """Return the constants of a core's memories and paths in which a device differs from the shared ones."""
    shared = shared_pipes()
    out: dict[str, Quantity] = {}
    for name, usual in shared.pipes.items():
        value = getattr(device.pipes, name)
        known = (layer[name] for layer in shared.devices.values() if name in layer and layer[name].value == value)
        if value != usual.value:
            given = Quantity(
                value=value, unit=usual.unit, source="the device file before calibration", confidence="assumed"
            )
            out[name] = next(known, given)
    return out


def shipped_text(name: str) -> str:
    """Return a complete device file for a shipped device, as text. It looks like a user's device file."""
    device = load_device(name)
    header = f"{device.title}: datasheet values, and constants fitted to public measurements."
    source = next(rate.source for rate in load_file(name).rates.values())
    return device_text(device, header=header, source=source)
