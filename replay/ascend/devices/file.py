# pyright: strict
"""Reads device files (TOML), checks their schema, units and names, and compiles them into a `DeviceProfile`.

A device file holds datasheet values. It may also hold rates and family constants, which replace those of the shared
cost model `devices/_model.toml`. The constants of all shipped devices are in one table (see `fitted`). A file may start
from a shipped device with `base = "910b3"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import msgspec

from opreplay.replay.ascend.cost.nearby import spot
from opreplay.replay.ascend.devices.fitted import Row, sections_of, shipped_rows
from opreplay.replay.ascend.profile import (
    DeviceProfile,
    FamilyCost,
    Form,
    Link,
    Neighbour,
    OwnMeasurement,
    Pipes,
    Quantity,
    Rates,
    SlowPath,
    Trust,
)
from opreplay.replay.ir.kernel import State
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.folders import read_regular
from opreplay.traces.toml_text import parse_toml

SCHEMA_VERSION = 3
"""Version of the file format: 1 is the first; 2 adds `nearby` to families; 3 adds `measured` and `base_version`."""

MAX_FILE_BYTES = 1 << 20
"""Maximum size in bytes of a device file or cluster file; 2000 measured calls take a quarter of it."""

RETIRED = frozenset({"reread_reach"})
"""Rates that are accepted in files of version 1 but not used any more."""

MAX_PULL = 10.0
"""Maximum absolute weight of a neighbour in a file.

Weights can be large: if close neighbours disagree, their single weights are larger than their combined effect.
"""

MOST_MEASURED = 2000
"""Maximum number of measured calls per file. It is limited because every prediction is compared with each of them."""

DATASHEET: dict[str, str] = {
    "aic_cores": "core",
    "aiv_cores": "core",
    "frequency": "Hz",
    "macs_float16": "MAC/cycle/core",
    "macs_bfloat16": "MAC/cycle/core",
    "macs_int8": "MAC/cycle/core",
    "macs_float32": "MAC/cycle/core",
    "macs_hf32": "MAC/cycle/core",
    "l2_bytes": "byte",
    "l0c_bytes": "byte",
    "hbm_bytes": "byte",
    "hbm_bytes_per_s": "byte/s",
    "link_bytes_per_s": "byte/s",
    "link_latency": "us",
}
"""Required datasheet entries of a device, with their units."""

OPTIONAL: dict[str, str] = {
    "server_dies": "die",
    "peer_bytes_per_s": "byte/s",
    "pair_link_bytes_per_s": "byte/s",
    "pair_link_latency": "us",
    "far_link_bytes_per_s": "byte/s",
    "far_link_latency": "us",
    "vector_bytes": "byte/cycle/core",
    "plain_convolution": "ratio",
    "macs_float8_e4m3fn": "MAC/cycle/core",
    "macs_float8_e5m2": "MAC/cycle/core",
    "macs_float4_e2m1fn_x2": "MAC/cycle/core",
}
"""Optional datasheet entries of a device, with their units.

They give: the number of dies of a server; links other than `link`; the width of a vector core's instructions if it is
not 128; the slowdown of a convolution that reads plain layouts; and rates of dtypes that only some cubes multiply.
Without the entry for convolutions, layouts are converted for them. A dtype without an entry `macs_` cannot run on the
cube; float64 never has one.
"""

NUMBERS = (
    "cycles",
    "half_ratio",
    "wide_ratio",
    "row_cycles",
    "row_alone_cycles",
    "fixed_us",
    "fixed_alone_us",
    "launch_factor",
    "memory_factor",
    "row_block",
    "passes",
    "scale",
    "band",
)
"""Numeric fields of a family, all in the units that the model file declares."""


OTHER_FIELDS = (
    "hf32",
    "native_half",
    "spreads",
    "least_elements",
    "most_elements",
    "dtypes",
    "states",
    "nearby",
    "samples",
    "samples_elsewhere",
    "measured_here",
    "measured_elsewhere",
)
"""Fields other than `NUMBERS` that a file may contain for a family."""


class NeighbourEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured kernel, as written in a file."""

    sizes: tuple[int, int, int]
    """(rows, columns, depth) of a product, (rows, row length, 1) of other kernels."""
    pull: float


class FamilyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel family, as written in a file. Fields that are not given keep the values of the shared model."""

    source: str
    confidence: Trust
    form: Form | None = None
    types: tuple[str, ...] = ()
    cycles: float | None = None
    half_ratio: float | None = None
    wide_ratio: float | None = None
    row_cycles: float | None = None
    row_alone_cycles: float | None = None
    fixed_us: float | None = None
    fixed_alone_us: float | None = None
    launch_factor: float | None = None
    memory_factor: float | None = None
    row_block: float | None = None
    passes: float | None = None
    scale: float | None = None
    band: float | None = None
    hf32: bool | None = None
    native_half: bool | None = None
    spreads: bool | None = None
    nearby: dict[str, tuple[NeighbourEntry, ...]] | None = None
    least_elements: float | None = None
    most_elements: float | None = None
    dtypes: tuple[str, ...] | None = None
    states: tuple[State, ...] | None = None
    samples: int | None = None
    samples_elsewhere: int | None = None
    measured_here: tuple[str, ...] | None = None
    measured_elsewhere: tuple[str, ...] | None = None


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared cost model file."""

    schema_version: int
    units: dict[str, str]
    rates: dict[str, Quantity]
    alone: dict[str, dict[str, Quantity]]
    """Factors for isolated calls, by kind of device (`DeviceProfile.kind`). They apply to rates and to
    `FAMILY_FACTORS`.
    """
    families: dict[str, FamilyEntry]


FAMILY_FACTORS = ("cycles", "row_cycles", "fixed_us")
"""Constants of vector kernel families. For isolated calls, they are multiplied by factors."""
UNSCALED = frozenset({"matmul", "conv", "attention", "collective", "aicpu", "host", "free"})
"""Forms of kernel families whose constants are not multiplied by factors for isolated calls."""


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device file."""

    schema_version: int
    name: str
    title: str = ""
    version: str = "0"
    base: str | None = None
    base_version: str = ""
    """Version of the base device whose predictions `measured` was compared with; "" accepts any version."""
    aliases: tuple[str, ...] = ()
    generation: str = ""
    """Group of devices that share fitted constants; the device's own name if it is in no group."""
    datasheet: dict[str, Quantity] = {}
    rates: dict[str, Quantity] = {}
    families: dict[str, FamilyEntry] = {}
    pipes: dict[str, Quantity] = {}
    """Values that replace those of `_pipes.toml` on this device."""
    slow_paths: tuple[SlowPath, ...] = ()
    """Slow paths of this device, tried before those common to all devices."""
    measured: tuple[OwnMeasurement, ...] = ()
    """Calls that the user measured."""


class PipesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories and data paths of a core: default values, and values that replace the defaults on single devices."""

    schema_version: int
    pipes: dict[str, Quantity]
    devices: dict[str, dict[str, Quantity]] = {}


class SlowPathFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slow paths common to all devices."""

    schema_version: int
    slow_paths: tuple[SlowPath, ...]


FOLDER = Path(__file__).parent
"""Folder of the shipped device files."""


def list_devices() -> list[str]:
    """Return the sorted names of the devices that ship with opreplay."""
    names = (entry.name for entry in FOLDER.iterdir())
    return sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml") and not n.startswith("_"))


def _decode(text: bytes, kind: type[Any], where: str, fitted: tuple[Row, ...] = ()) -> Any:
    if len(text) > MAX_FILE_BYTES:
        raise FormatError(f"{where} has {len(text)} bytes, over the limit of {MAX_FILE_BYTES} for a device file")
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise FormatError(f"{where}: invalid TOML: {error}") from error
    version = raw.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise FormatError(
            f"{where}: schema_version is {version!r}, but this opreplay reads 1 to {SCHEMA_VERSION}",
            hint="A newer opreplay may read it." if newer else f"Begin it with schema_version = {SCHEMA_VERSION}.",
        )
    if fitted:
        raw |= sections_of(
            (raw.get("generation", ""), raw["name"]),
            fitted,
            {name: rate.unit for name, rate in load_model().rates.items()},
        )
    for section, entry_kind in (
        ("datasheet", Quantity),
        ("rates", Quantity),
        ("pipes", Quantity),
        ("families", FamilyEntry),
    ):
        _check_entries(raw.get(section), entry_kind, f"{where}: {section}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {error}", hint="`opreplay list devices 910b3` prints a complete file") from error


def _check_entries(entries: object, kind: type[Any], where: str) -> None:
    # One by one, as the decoder's own message does not name the key of a table in a table.
    if isinstance(entries, dict):
        for key, entry in cast("dict[str, Any]", entries).items():
            try:
                msgspec.convert(entry, kind)
            except msgspec.ValidationError as error:
                raise FormatError(f"{where}.{key}: {error}") from error


@lru_cache(maxsize=1)
def load_model() -> ModelFile:
    """Load the shared cost model and check it.

    Every rate must be present, every number must have a unit, and no kernel type may be in two families.
    """
    model: ModelFile = _decode((FOLDER / "_model.toml").read_bytes(), ModelFile, "_model.toml")
    _check_names("_model.toml", "rates", model.rates, set(Rates.__struct_fields__), complete=True)
    factors_on = {*Rates.__struct_fields__, *FAMILY_FACTORS}
    for kind, factors in model.alone.items():
        _check_names("_model.toml", f"alone.{kind}", factors, factors_on, complete=False)
    missing = set(NUMBERS) - set(model.units)
    if missing:
        raise FormatError(f"_model.toml: [units] lacks {', '.join(sorted(missing))}")
    type_table(model)
    return model


@lru_cache(maxsize=1)
def shared_slow_paths() -> tuple[SlowPath, ...]:
    """Return the slow paths common to all devices."""
    file: SlowPathFile = _decode((FOLDER / "_slow_paths.toml").read_bytes(), SlowPathFile, "_slow_paths.toml")
    return file.slow_paths


@lru_cache(maxsize=1)
def shared_pipes() -> PipesFile:
    """Return the default memory sizes, path rates and start costs of a core; check that none is missing."""
    file: PipesFile = _decode((FOLDER / "_pipes.toml").read_bytes(), PipesFile, "_pipes.toml")
    _check_names("_pipes.toml", "pipes", file.pipes, set(Pipes.__struct_fields__), complete=True)
    for name, pipes in file.devices.items():
        _check_pipes(f"_pipes.toml: devices.{name}", pipes, file)
    return file


def _check_pipes(where: str, pipes: dict[str, Quantity], shared: PipesFile) -> None:
    _check_names(where, "pipes", pipes, set(Pipes.__struct_fields__), complete=False)
    _check_quantities(where, "pipes", pipes, {name: quantity.unit for name, quantity in shared.pipes.items()})


def _check_quantities(where: str, section: str, quantities: dict[str, Quantity], units: dict[str, str]) -> None:
    for name, quantity in quantities.items():
        if quantity.unit != units[name]:
            raise FormatError(f"{where}: {section}.{name} has unit {quantity.unit!r}, expected {units[name]!r}")
        if quantity.value <= 0:
            raise FormatError(f"{where}: {section}.{name} must be above 0, but is {quantity.value}")


def pipes_of(file: DeviceFile) -> dict[str, Quantity]:
    """Return the memory sizes, data path rates and start costs of a device's core, each with its source."""
    shared = shared_pipes()
    base = load_file(file.base) if file.base else None
    layers = [shared.pipes, *(shared.devices.get(name, {}) for name in (file.base, file.name) if name)]
    out: dict[str, Quantity] = {}
    for layer in (*layers, base.pipes if base else {}, file.pipes):
        out |= layer
    return out


def _paths_by_type(paths: Iterable[SlowPath]) -> dict[str, tuple[SlowPath, ...]]:
    out: dict[str, tuple[SlowPath, ...]] = {}
    for path in paths:
        for kernel_type in path.types:
            out[kernel_type] = (*out.get(kernel_type, ()), path)
    return out


def type_table(model: ModelFile) -> dict[str, str]:
    """Return a table from CANN kernel type to family. Raises FormatError for a type that is in two families."""
    table: dict[str, str] = {}
    for family, entry in model.families.items():
        for kernel_type in entry.types:
            if kernel_type in table:
                raise FormatError(f"_model.toml: {kernel_type} is in both {table[kernel_type]} and {family}")
            table[kernel_type] = family
    return table


def _check_names(where: str, section: str, entries: Any, known: set[str], *, complete: bool) -> None:
    unknown, missing = sorted(set(entries) - known), sorted(known - set(entries))
    if unknown:
        raise FormatError(
            f"{where}: unknown name in [{section}]: {', '.join(unknown)}", hint=f"known: {', '.join(sorted(known))}"
        )
    if complete and missing:
        raise FormatError(
            f"{where}: [{section}] is missing {', '.join(missing)}",
            hint='Add them, or start from a shipped device: base = "910b3".',
        )


def _checked(file: DeviceFile, where: str) -> DeviceFile:
    model = load_model()
    required = {name: value for name, value in file.datasheet.items() if name not in OPTIONAL}
    _check_names(where, "datasheet", required, set(DATASHEET), complete=file.base is None)
    if file.schema_version == 1:
        file = msgspec.structs.replace(file, rates={k: v for k, v in file.rates.items() if k not in RETIRED})
    _check_names(where, "rates", file.rates, set(Rates.__struct_fields__), complete=False)
    _check_names(where, "families", file.families, set(model.families), complete=False)
    _check_pipes(where, file.pipes, shared_pipes())
    _check_quantities(where, "datasheet", file.datasheet, DATASHEET | OPTIONAL)
    _check_quantities(where, "rates", file.rates, {name: quantity.unit for name, quantity in model.rates.items()})
    for path in file.slow_paths:
        if not (0 < path.factor < 1e6 and 0 <= path.cycles < 1e6 and 0 <= path.row_cycles < 1e9):
            raise FormatError(f"{where}: slow_paths {path.name!r}: factor and cycles must be 0 or more and below 1e6")
    for name, entry in file.families.items():
        _check_family(f"{where}: families.{name}", entry)
    if len(file.measured) > MOST_MEASURED:
        raise FormatError(f"{where} has {len(file.measured):,} measured calls, over the limit of {MOST_MEASURED:,}")
    return file


def _check_family(where: str, entry: FamilyEntry) -> None:
    for number in NUMBERS:
        value = getattr(entry, number)
        if value is not None and not 0 <= value < 1e9:
            raise FormatError(f"{where}.{number} must be at least 0, but is {value}")
    if entry.band is not None and entry.band < 1.0:
        raise FormatError(f"{where}.band must be a factor of at least 1, but is {entry.band}")
    for kind, neighbours in (entry.nearby or {}).items():
        if any(min(neighbour.sizes) < 1 or not abs(neighbour.pull) <= MAX_PULL for neighbour in neighbours):
            raise FormatError(
                f"{where}.nearby.{kind}: sizes must be at least 1, and pulls between -{MAX_PULL:g} and {MAX_PULL:g}"
            )
    if entry.types or entry.form:
        raise FormatError(f"{where}: only the shared model may set form and types")


def read_device_file(text: bytes, where: str, fitted: tuple[Row, ...] = ()) -> DeviceFile:
    """Decode and check the text of a device file.

    The device's entries in the table of fitted constants are added to it. Raises FormatError that names the key or, for
    broken TOML, the line.
    """
    return _checked(_decode(text, DeviceFile, where, fitted), where)


def _values(quantities: Mapping[str, Quantity]) -> dict[str, float]:
    return {name: quantity.value for name, quantity in quantities.items()}


def compile_device(file: DeviceFile) -> DeviceProfile:
    """Merge a device file with its base and the shared model into the values used for predictions."""
    model = load_model()
    base = load_file(file.base) if file.base else DeviceFile(schema_version=SCHEMA_VERSION, name="")
    datasheet = base.datasheet | file.datasheet
    number = _values(datasheet)
    device = DeviceProfile(
        name=file.name,
        title=file.title or file.name,
        version=file.version,
        aliases=file.aliases,
        generation=file.generation or base.generation or file.name,
        aic_cores=int(number["aic_cores"]),
        aiv_cores=int(number["aiv_cores"]),
        freq_hz=number["frequency"],
        macs_per_cycle={k.removeprefix("macs_"): v for k, v in number.items() if k.startswith("macs_")},
        l2_bytes=number["l2_bytes"],
        l0c_bytes=number["l0c_bytes"],
        hbm_bytes=number["hbm_bytes"],
        hbm_bytes_per_s=number["hbm_bytes_per_s"],
        link=Link(bytes_per_s=number["link_bytes_per_s"], latency_us=number["link_latency"]),
        plain_convolution=number.get("plain_convolution"),
        vector_width=number.get("vector_bytes", 128.0) / 128.0,
        server_dies=int(number.get("server_dies", 8)),
        peer_bytes_per_s=number.get("peer_bytes_per_s"),
        pair_link=_optional_link(number, "pair_link"),
        far_link=_optional_link(number, "far_link"),
        rates=Rates(**_values(model.rates | base.rates | file.rates)),
        pipes=Pipes(**_values(pipes_of(file))),
        families={
            name: _family(name, entry.form or "elementwise", entry, base.families.get(name), file.families.get(name))
            for name, entry in model.families.items()
        },
        types=type_table(model),
        slow_paths=_paths_by_type(
            path
            for path in (*file.slow_paths, *base.slow_paths, *shared_slow_paths())
            if path.vector_bytes in (0.0, number.get("vector_bytes", 128.0))
        ),
        own_slow_paths=file.slow_paths + base.slow_paths,
        datasheet=datasheet,
        measured=file.measured,
    )
    shipped = [file.name] if canonical_name(file.name) is not None else _shipped_like(device)
    same = (name for name in shipped if name == file.name or _values(_load_shipped(name).datasheet) == number)
    return msgspec.structs.replace(
        device,
        shipped_name=next(same, ""),
        is_own_fit=not shipped and any((file.rates, file.families, file.slow_paths)),
    )


def _shipped_like(device: DeviceProfile) -> list[str]:
    """Return the names of the shipped devices whose constants a device has, as a copy of a device's file does."""
    parts = ("rates", "families", "own_slow_paths")
    return [
        name
        for name in list_devices()
        if all(getattr(device, part) == getattr(_load_shipped(name), part) for part in parts)
    ]


def datasheet_only(device: DeviceProfile) -> DeviceProfile:
    """Return the device without any calibration: its datasheet and the shared model's initial values."""
    key = device.name, device.version, *((name, quantity.value) for name, quantity in sorted(device.datasheet.items()))
    bare = _bare.get(key)
    if bare is None:
        file = DeviceFile(
            schema_version=SCHEMA_VERSION,
            name=device.name,
            title=device.title,
            version=device.version,
            aliases=device.aliases,
            generation=device.generation,
            datasheet=device.datasheet,
        )
        bare = _bare[key] = compile_device(file)
    return bare


_bare: dict[object, DeviceProfile] = {}


REFERENCE = {"910": "910b2", "950": "950pr"}
"""Kind of device → device whose constants are used for isolated calls on all devices of the kind.

If the constants were not shared, a larger device could be predicted slower only because a network was measured on it.
Factors and measured calls are relative to these devices.
"""


def alone(device: DeviceProfile) -> DeviceProfile:
    """Return the device with the constants for isolated calls.

    The constants come from the reference device of the same kind, or from the user's device file if that has its own
    fit. They are multiplied by the model's factors for isolated calls.
    """
    key = device.name, device.version, *((name, quantity.value) for name, quantity in sorted(device.datasheet.items()))
    single = _alone.get(key)
    if single is None:
        shared = device if device.is_own_fit else _with_constants_of(device, load_device(REFERENCE[device.kind]))
        single = _alone[key] = alone_by(shared, _values(load_model().alone[device.kind]))
    return single


_alone: dict[object, DeviceProfile] = {}


def _with_constants_of(device: DeviceProfile, other: DeviceProfile) -> DeviceProfile:
    """Return a device with the rates and families of another device. Its own record of what was measured is kept."""
    kept = ("samples", "samples_elsewhere", "measured_here", "measured_elsewhere", "states")
    families = {
        name: msgspec.structs.replace(family, **{field: getattr(device.families[name], field) for field in kept})
        for name, family in other.families.items()
    }
    return msgspec.structs.replace(device, rates=other.rates, families=families)


def alone_by(device: DeviceProfile, factors: Mapping[str, float]) -> DeviceProfile:
    """Return the device with its rates and families multiplied by factors for isolated calls.

    Its measured neighbours are removed, because they are kernels in networks.
    """
    rates = {name: getattr(device.rates, name) * factors[name] for name in Rates.__struct_fields__ if name in factors}
    families = {name: _scaled(family, factors) for name, family in device.families.items()}
    return msgspec.structs.replace(device, rates=msgspec.structs.replace(device.rates, **rates), families=families)


def _scaled(family: FamilyCost, factors: Mapping[str, float]) -> FamilyCost:
    family = msgspec.structs.replace(
        family,
        row_cycles=family.row_alone_cycles or family.row_cycles,
        fixed_us=family.fixed_alone_us or family.fixed_us,
    )
    scaled = () if family.form in UNSCALED else FAMILY_FACTORS
    constants = {field: getattr(family, field) * factors[field] for field in scaled if field in factors}
    return msgspec.structs.replace(family, nearby={}, **constants)


def _family(name: str, form: Form, *layers: FamilyEntry | None) -> FamilyCost:
    """Merge family entries; later entries override earlier ones."""
    values: dict[str, Any] = {"name": name, "form": form}
    for layer in filter(None, layers):
        fields = {field: getattr(layer, field) for field in (*NUMBERS, *OTHER_FIELDS)}
        values |= {field: value for field, value in fields.items() if value is not None}
    if "nearby" in values:
        values["nearby"] = {
            kind: tuple(_neighbour(neighbour, form) for neighbour in entries)
            for kind, entries in values["nearby"].items()
        }
    return FamilyCost(**values)


def _neighbour(entry: NeighbourEntry, form: Form) -> Neighbour:
    rows, columns, depth = entry.sizes
    return (*spot(rows, columns, depth, form), entry.pull)


def _optional_link(number: dict[str, float], name: str) -> Link | None:
    speed = number.get(f"{name}_bytes_per_s")
    return None if speed is None else Link(bytes_per_s=speed, latency_us=number.get(f"{name}_latency", 0.0))


@lru_cache(maxsize=32)
def _shipped(name: str) -> DeviceFile:
    return read_device_file((FOLDER / f"{name}.toml").read_bytes(), f"{name}.toml", shipped_rows())


@lru_cache(maxsize=64)
def canonical_name(name: str) -> str | None:
    """Return the name of the shipped device that has this name or alias, ignoring case; None if there is none."""
    wanted, names = _plain(name), list_devices()
    by_name = (known for known in names if _plain(known) == wanted)
    by_alias = (known for known in names if wanted in map(_plain, _shipped(known).aliases))
    return next(by_name, None) or next(by_alias, None)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "").replace("-", "_")


_loaded: set[str] = set()
"""Names of devices that were read from users' own files."""


def is_known(name: str) -> bool:
    """Check whether a device of this name ships or was loaded from a user's file."""
    return name in _loaded or canonical_name(name) is not None


def no_such_device(name: str) -> tuple[str, str]:
    """Return (message, hint) for an unknown device name; the message lists the devices whose names start with it."""
    wanted = _plain(name).removeprefix("ascend")
    meant = [known for known in list_devices() if wanted and _plain(known).startswith(wanted)]
    if meant:
        return (
            f"{name!r} may mean {', '.join(meant)}",
            "name one of these devices: they differ in cores, clock and memory",
        )
    return f"no simulated device {name!r}", f"{_known()}; or the path of a .toml file"


DEVICE_FILE = f"A device file is a regular TOML file of at most {MAX_FILE_BYTES:,} bytes."


def is_file_name(text: str) -> bool:
    """Check whether the text is the path of a device file, not a device name: it contains a slash or ends in .toml."""
    return text.endswith(".toml") or "/" in text


def load_file(name_or_path: str | Path) -> DeviceFile:
    """Load a shipped device file by name or alias, or a TOML file by path (text with a slash or ending in .toml)."""
    text = str(name_or_path)
    if is_file_name(text):
        try:
            content = read_regular(text, MAX_FILE_BYTES)
        except OSError as error:
            raise UsageError(f"cannot read device file {text}: {error.strerror}", hint=DEVICE_FILE) from error
        file = read_device_file(content, text)
        if file.base is not None:
            based_on = canonical_name(file.base)
            if based_on is None:
                raise FormatError(f"{text}: base {file.base!r} is not a shipped device", hint=_known())
            _check_base_version(file, _shipped(based_on), text)
        return file
    known = canonical_name(text)
    if known is None:
        message, hint = no_such_device(text)
        raise UsageError(message, hint=hint)
    return _shipped(known)


def _check_base_version(file: DeviceFile, base: DeviceFile, where: str) -> None:
    """Check that the measured calls were compared with predictions of the installed version of the base device.

    Raises FormatError if it was another version.
    """
    if file.base_version and file.base_version != base.version:
        raise FormatError(
            f"{where}: its measured calls were calibrated against version {file.base_version} of "
            f"{base.name}, but the installed version is {base.version}",
            hint="Create it again: opreplay calibrate measured.csv --soc NAME -o FILE.toml --force",
        )


def _known() -> str:
    return f"known devices: {', '.join(list_devices())}"


@lru_cache(maxsize=32)
def _load_shipped(name: str) -> DeviceProfile:
    return compile_device(_shipped(name))


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """Load the device to predict with: "910b3", "Ascend910B3" (any case), or the path of a device file.

    Raises UsageError for an unknown name (the hint lists the known ones), FormatError for an invalid file.
    """
    text = str(name_or_path)
    if not is_file_name(text):
        known = canonical_name(text)
        if known is not None:
            return _load_shipped(known)
    device = compile_device(load_file(name_or_path))
    _loaded.add(device.name)
    return device
