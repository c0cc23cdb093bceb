# pyright: strict
"""Constants fitted to public measurements for the shipped devices: one table, `fitted.csv`, by family and SoC.

A row without an SoC applies to all SoCs, other rows only to their SoC or generation. A row without a family holds a
rate. A row with sizes holds a measured kernel and its weight (see `cost.nearby`). `python -m benchmarks.device_model
fit` writes the table.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = "fitted.csv"
COLUMNS = ("family", "soc", "constant", "sizes", "value")

LISTS = frozenset({"dtypes", "states", "measured"})
COUNTS = frozenset({"samples", "samples_elsewhere"})

Row = tuple[str, str, str, str, str]


def source_of(samples: int, samples_elsewhere: int, source: str) -> dict[str, str]:
    """Return the source and confidence of a family's constants.

    `samples` is the number of kernels measured on this SoC, `samples_elsewhere` the number measured on other SoCs.
    """
    if samples:
        return {"source": source, "confidence": "fitted"}
    if samples_elsewhere:
        return {"source": "fitted to other SoCs", "confidence": "fitted"}
    return {"source": "shared model; its band covers all families together", "confidence": "assumed"}


@lru_cache(maxsize=1)
def shipped_rows() -> tuple[Row, ...]:
    """Return all rows of the shipped table."""
    return rows_of(Path(__file__).with_name(FILE).read_text(encoding="utf-8"))


def rows_of(text: str) -> tuple[Row, ...]:
    """Parse all rows of a table."""
    header, *rows = csv.reader(text.splitlines())
    assert tuple(header) == COLUMNS, header
    return tuple((family, soc, constant, sizes, value) for family, soc, constant, sizes, value in rows)


def sections_of(names: tuple[str, ...], rows: tuple[Row, ...], units: dict[str, str]) -> dict[str, Any]:
    """Return the version, rates and families of a device as the sections of a device file.

    `names` are the device's generation and its own name; `units` are the units of the rates.
    """
    here = {"", *names}
    alone: dict[str, str] = {}
    families: dict[str, dict[str, Any]] = {}
    for family, of, constant, sizes, value in rows:
        if not family:
            if of in here:
                alone[constant] = value
            continue
        entry = families.setdefault(
            family, {"samples": 0, "samples_elsewhere": 0, "measured_here": [], "measured_elsewhere": []}
        )
        if constant == "samples":
            entry["samples" if of in here else "samples_elsewhere"] += int(value)
        elif constant == "measured":
            where: list[str] = entry["measured_here" if of in here else "measured_elsewhere"]
            where += [kind for kind in value.split() if kind not in where]
        elif of not in here:
            continue
        elif sizes:
            kernel = {"sizes": tuple(map(int, sizes.split())), "pull": float(value)}
            entry.setdefault("nearby", {}).setdefault(constant, []).append(kernel)
        else:
            entry[constant] = value.split() if constant in LISTS else float(value)
    source, version = alone.pop("source"), alone.pop("version")
    for entry in families.values():
        entry |= source_of(entry["samples"], entry["samples_elsewhere"], source)
    rates = {
        name: {"value": float(value), "unit": units[name], "source": source, "confidence": "fitted"}
        for name, value in alone.items()
    }
    return {"version": version, "rates": rates, "families": families}


FACTS = LISTS | COUNTS | {"version", "source", "least_elements", "most_elements"}
"""Values in the column `constant` of rows that describe the measurements. The other rows describe the fit."""


def counts_of(rows: tuple[Row, ...]) -> dict[str, int]:
    """Return the number of fitted values of each kind: constants shared by all devices, constants of single devices,
    and weights of measured kernels.
    """
    constants = [row for row in rows if not row[3] and row[2] not in FACTS]
    shared = sum(not row[1] for row in constants)
    return {"shared": shared, "of_single_devices": len(constants) - shared, "pulls": sum(bool(row[3]) for row in rows)}
