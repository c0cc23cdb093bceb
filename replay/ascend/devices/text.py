# pyright: strict
"""Writes device files: datasheet, rates and family constants as TOML that `file` reads back."""

from __future__ import annotations

import json
import math

from opreplay.replay.ascend.cost.nearby import sizes_at
from opreplay.replay.ascend.devices.file import NUMBERS, SCHEMA_VERSION, DeviceFile, load_model
from opreplay.replay.ascend.profile import DeviceProfile, FamilyCost, Quantity, Rates, SlowPath


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e16:
        return f"{value:.1f}" if abs(value) < 1e6 else f"{value:.0f}.0"
    return f"{value:.5g}" if "e" not in f"{value:.5g}" else repr(float(f"{value:.5g}"))


def _quantity(section: str, name: str, quantity: Quantity) -> str:
    return (
        f"[{section}.{name}]\nvalue = {_number(quantity.value)}\nunit = {json.dumps(quantity.unit)}\n"
        f"source = {json.dumps(quantity.source)}\nconfidence = {json.dumps(quantity.confidence)}\n"
    )


def _family(family: FamilyCost, default: FamilyCost, source: str) -> str:
    lines = [f"[families.{family.name}]"]
    for name in NUMBERS:
        value = getattr(family, name)
        if not math.isclose(value, getattr(default, name), rel_tol=1e-4):
            lines.append(f"{name} = {_number(value)}")
    if family.most_elements > 0:
        lines.append(f"least_elements = {_number(family.least_elements)}")
        lines.append(f"most_elements = {_number(family.most_elements)}")
        lines.append(f"dtypes = {json.dumps(list(family.dtypes))}")
    if family.states:
        lines.append(f"states = {json.dumps(list(family.states))}")
    lines.append(f"samples = {family.samples}")
    lines.append(f"samples_elsewhere = {family.samples_elsewhere}")
    if family.samples:
        lines.append(f'source = {json.dumps(source)}\nconfidence = "fitted"')
    elif family.samples_elsewhere:
        lines.append('source = "fitted to other SoCs"\nconfidence = "fitted"')
    else:
        lines.append('source = "shared model; the band from all families"\nconfidence = "assumed"')
    return "\n".join([*lines, *_nearby(family)]) + "\n"


def _nearby(family: FamilyCost) -> list[str]:
    if not family.nearby:
        return []
    lines = [f"[families.{family.name}.nearby]"]
    for kind, neighbours in family.nearby.items():
        entries = ", ".join(
            f"{{ sizes = {list(sizes_at((rows, columns, depth), family.form))}, pull = {pull:.4f} }}"
            for rows, columns, depth, pull in neighbours
        )
        lines.append(f"{json.dumps(kind)} = [{entries}]")
    return lines


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


def device_text(file: DeviceFile, device: DeviceProfile, *, header: str, source: str, model: DeviceProfile) -> str:
    """The TOML text of a calibrated device.

    `file` gives name, title, version, aliases and datasheet, `device` the fitted constants, `model` the same device
    before calibration: only constants that differ from it are written. `header` becomes comment lines.
    """
    shared = load_model()
    parts = ["".join(f"# {line}\n" for line in header.splitlines())]
    aliases = ", ".join(json.dumps(a) for a in file.aliases)
    parts.append(
        f"schema_version = {SCHEMA_VERSION}\nname = {json.dumps(file.name)}\ntitle = {json.dumps(file.title)}\n"
        f"version = {json.dumps(file.version)}\naliases = [{aliases}]\n"
    )
    parts += [_quantity("datasheet", name, quantity) for name, quantity in device.datasheet.items()]
    for name in Rates.__struct_fields__:
        value = getattr(device.rates, name)
        if not math.isclose(value, getattr(model.rates, name), rel_tol=1e-4):
            rate = Quantity(value=value, unit=shared.rates[name].unit, source=source, confidence="fitted")
            parts.append(_quantity("rates", name, rate))
    for name, family in device.families.items():
        parts.append(_family(family, model.families[name], source))
    parts += [_slow_path(path) for path in device.own_slow_paths]
    return "\n".join(parts)
