"""Types of option values: sizes, durations, fractions, assignments."""

from __future__ import annotations

import math
import os
import re
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

_BYTES = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate(("k", "M", "G", "T"), start=1)
    for suffix, base in (("", 1000), ("B", 1000), ("iB", 1024))
}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([^0-9\s]*)")


def _scaled(text: str, units: dict[str, Any]) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        return None
    scaled = float(match[1]) * units[match[2]]
    return scaled if math.isfinite(scaled) else None


class ByteSize(click.ParamType):
    """Converts a size, "1GB", "512MiB", "800k" or a plain number, to bytes (int)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        folded = re.sub(r"(?<=[0-9.\s])K", "k", str(value))
        size = _scaled(folded, _BYTES)
        if size is None or size < 1:
            self.fail(f"{value!r} is not a size; write it like 1GB, 512MiB or 800k", param, ctx)
        return int(size)


class Count(click.IntRange):
    """Converts a count, "4096", "4k" or "2^12" as in --vary, to int."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, float) and not value.is_integer():  # of a file of options
            self.fail(f"{value!r} is not a whole number; write it like 4096, 4k or 2^12", param, ctx)
        if isinstance(value, str):
            from opreplay.replay.ir.notation import whole_number
            from opreplay.traces.errors import UsageError

            try:
                value = whole_number(value)
            except UsageError:
                self.fail(f"{value!r} is not a whole number; write it like 4096, 4k or 2^12", param, ctx)
        return super().convert(cast("int", value), param, ctx)


class Duration(click.ParamType):
    """Converts a duration, "0.2s", "200ms" or "2min", to seconds; it must be above 0.

    A number without a unit counts as seconds, which is reported on stderr. If `without_unit` is set, the number is
    rejected instead, and `without_unit` is the hint.
    """

    name = "time"

    def __init__(self, *, without_unit: str = "") -> None:
        self._without_unit = without_unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        seconds = _scaled(str(value), _SECONDS)
        if seconds is None or seconds <= 0:
            self.fail(f"{value!r} is not a time; write it like 0.2s, 200ms or 2min", param, ctx)
        if str(value).strip()[-1] in "0123456789.":
            if self._without_unit:
                self.fail(f"{value!r} has no unit: {self._without_unit}", param, ctx)
            name = "a time" if param is None else param.name
            click.echo(f"opreplay: {name} is taken as {seconds:g} s, because {value!r} has no unit", err=True)
        return seconds


class Share(click.ParamType):
    """Converts a fraction, "0.1%" or "0.001", to a number from 0 to 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        share = _scaled(str(value), {"": 1.0, "%": 0.01})
        if share is None or not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share; write it like 0.1% or 0.001", param, ctx)
        return share


class Names(click.ParamType):
    """Converts a list of allowed names, "work,values", to ("work", "values")."""

    name = "names"

    def __init__(self, *known: str) -> None:
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(","))
        if wrong := [name for name in names if name not in self._known]:
            self.fail(f"{wrong[0]!r} is none of {', '.join(self._known)}", param, ctx)
        return names


class Assignments(click.ParamType):
    """Converts one "NAME=VALUE" of a repeatable option to (name, value); both must match their patterns."""

    name = "name=value"

    def __init__(self, name: re.Pattern[str], value: re.Pattern[str], example: str) -> None:
        self._name, self._value, self._example = name, value, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, text = str(value).partition("=")
        if not (self._name.fullmatch(name) and self._value.fullmatch(text)):
            self.fail(f"{value!r}: write it like {self._example}", param, ctx)
        return name, text


class FileName(click.ParamType):
    """Name of a file or folder, a glob or "-"; shells complete it as a file name."""

    name = "text"
    envvar_list_splitter = os.pathsep

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class SocName(FileName):
    """Name of a simulated device, or a device file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from importlib.resources import files

        shipped = (entry.name for entry in files("opreplay.replay.ascend.devices").iterdir())
        names = sorted(name.removesuffix(".toml") for name in shipped if name.endswith(".toml"))
        completions = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return completions or super().shell_complete(ctx, param, incomplete)
