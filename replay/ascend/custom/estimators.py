# pyright: strict
"""Users' own operators: registered estimators and properties, their priority over built-ins, and the custom-op folder.

Estimates of an op are tried in this order: a user's estimator; a user's properties; a tile program; the built-in
estimate, which lowers to kernels; the time to move the bytes of the op's tensors. The only cost formula here is the one
for properties. `op_invoke` defines the objects that user code receives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar, cast

import msgspec

from opreplay.initializers.user_code import (
    failed_at,
    forget_loaded,
    import_from_package,
    import_package,
    loading,
    missing_op_hint,
    place_of,
    run_file,
)
from opreplay.initializers.user_table import UserFunction, UserTable
from opreplay.replay.ascend.cost.cube import mac_rate
from opreplay.replay.ascend.cost.vector import launch_between, memory_us, resident_share
from opreplay.replay.ascend.cost.vector_work import blocks_for
from opreplay.replay.ascend.custom import op_invoke
from opreplay.replay.ascend.custom.op_invoke import ComputeOps, OpInvokeInfo, PerformanceModel, PerformanceProperties
from opreplay.replay.ascend.custom.programs import PROGRAMS
from opreplay.replay.ascend.custom.registrations import USER_RULES, CustomOpError, device_name, op_name
from opreplay.replay.ascend.devices.file import is_known, no_such_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import State, itemsize
from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.errors import UsageError
from opreplay.traces.names import plural

Estimator = TypeVar("Estimator", bound=Callable[..., Any])
Value = TypeVar("Value")

ESTIMATORS: UserTable[UserFunction] = UserTable("estimator", remedy="override=True replaces it")

MAX_SECONDS = 1e9
"""Maximum time of an op in seconds (thirty years); sums of such times stay finite."""
MAX_AMOUNT = 1e30
"""Maximum number of bytes or operations accepted as a property of an op."""
SHOWN = 200
"""Maximum number of characters of an invalid user value that a message repeats."""
_OWN_FILES = (__file__, op_invoke.__file__)

CUBE_DTYPES = ("float16", "bfloat16", "float32", "int8")
"""Dtypes for which estimators get the cube's peak rate, unless the cube does not support them."""
VECTOR_BYTES_PER_CYCLE = 128
"""Bytes per cycle that a vector core's instructions process (datasheet of the 910B)."""


class DeviceFacts:
    """Read access to a `DeviceProfile`; also has every attribute of the profile (`name`, `rates`, `aic_cores`, ...)."""

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self.profile, name)

    @cached_property
    def mma_ops(self) -> dict[Any, float]:
        """Return the peak operations per second of the cube cores by torch dtype; a multiply-add counts as two."""
        import torch

        device = self.profile
        return {
            getattr(torch, name): 2 * device.macs_per_cycle[name] * device.aic_cores * device.freq_hz
            for name in CUBE_DTYPES
            if name in device.macs_per_cycle
        }

    @cached_property
    def gp_ops(self) -> dict[Any, float]:
        """Return the peak operations per second of the vector cores by torch dtype: 128 bytes per cycle and core."""
        import torch

        device = self.profile
        sizes = {"float16": 2, "bfloat16": 4, "float32": 4, "int8": 2}
        return {getattr(torch, name): 128 / size * device.aiv_cores * device.freq_hz for name, size in sizes.items()}

    @property
    def memory_bandwidth_bytes_ps(self) -> float:
        """Peak bandwidth of the HBM, bytes per second."""
        return self.profile.hbm_bytes_per_s

    @property
    def memory_size_bytes(self) -> float:
        """Size of the HBM in bytes."""
        return self.profile.hbm_bytes

    @property
    def compute_efficiency(self) -> float:
        """Share of the cube's peak that large products reach."""
        return self.profile.rates.mac_efficiency

    @property
    def memory_efficiency(self) -> float:
        """Share of the HBM's peak that vector kernels reach."""
        return self.profile.rates.hbm_efficiency


def register_op_estimator(
    op: Any, device_profile: Any = None, override: bool = False
) -> Callable[[Estimator], Estimator]:
    """Register a function (OpInvokeInfo, device) -> PerformanceModel.Result that estimates an op's time directly.

    `op` is torch.ops.ns.name, an overload, or "ns::name"; `device_profile` is a device, its name, a tuple or list of
    these, or None for all devices. The function takes precedence over every built-in estimate. Raises ValueError if the
    op already has a function for a device, unless `override` is set.
    """

    name = op_name(op)
    devices = [device_name(device) for device in _several(device_profile)]
    if not devices:
        raise CustomOpError(
            f"the estimator of {name} names no device", hint="Leave out device_profile to register for all devices."
        )

    def register(function: Estimator) -> Estimator:
        for on_device in devices:
            ESTIMATORS.add(UserFunction(ops=(name,), device=on_device, function=function), replace=override)
        return function

    return register


def _several(device_profile: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", device_profile) if isinstance(device_profile, tuple | list) else [device_profile]


def clear_registrations() -> None:
    """Remove all user registrations and the list of loaded files; for tests and long-lived programs."""
    ESTIMATORS.clear()
    PROGRAMS.clear()
    OpInvokeInfo.properties.clear()
    USER_RULES.clear()
    forget_loaded()


def refuse_unknown_devices() -> None:
    """Raise CustomOpError if an estimator's device is neither shipped nor loaded, because the estimator would never be
    used.
    """
    for entry in ESTIMATORS:
        if entry.device is not None and not is_known(entry.device):
            message, hint = no_such_device(entry.device)
            raise CustomOpError(
                f"{entry.place}: the estimator of {entry.ops[0]} is for {entry.device}: {message}",
                hint=f"{hint} that --soc accepts",
            )


def unused_registrations(devices: Sequence[str], ops: Collection[str]) -> list[str]:
    """Return one line for each unused registration of the user, with the reason why it was not used.

    Registrations are estimators, property functions, tile programs and rules. `devices` are the simulated devices.
    `ops` are the names of the examined ops.
    """
    tables: tuple[tuple[str, UserTable[UserFunction]], ...] = (
        ("estimator", ESTIMATORS),
        ("properties", OpInvokeInfo.properties),
        ("tile program", PROGRAMS),
        ("rule", USER_RULES),
    )
    lines: list[str] = []
    for kind, table, entry in ((kind, of, entry) for kind, of in tables for entry in of.unused()):
        if not devices:
            why = "no device is simulated; add --soc NAME"
        elif entry.device is not None and entry.device not in devices:
            why = f"registered for {entry.device}, but the simulated device is {', '.join(devices)}"
        elif not _names_any(entry, table, ops):
            why = "no selected op has that name"
        else:
            why = "another registration takes precedence"
        lines.append(f"not used: {kind} of {' '.join(entry.ops)} ({PurePath(entry.place).name}): {why}")
    return lines


def _names_any(entry: UserFunction, table: UserTable[UserFunction], ops: Collection[str]) -> bool:
    """Check whether a registration applies to one of these ops.

    Names match with or without an overload name or an in-place underscore.
    """
    bases = {op_name(name) for name in ops if "::" in name}
    names = {*ops, *bases, *(base.rstrip("_") for base in bases)}
    if not names.isdisjoint((*entry.ops, *(op.partition(".")[0] for op in entry.ops))):
        return True
    return any(registered is entry for name in names for _, registered in table.matching(name, entry.device))


class Estimate(msgspec.Struct, Generic[Value], frozen=True):
    """The result of a user's function for an op."""

    value: Value
    source: str
    """The user's function as "name (file.py:line)"."""
    assumed: str
    """Assumption about the op that the function relied on; "" if none."""


def estimate(op: ReplayOp, device: DeviceProfile) -> Estimate[float] | None:
    """Return the time in microseconds from a user's estimator for `op` on `device`; None if none is registered.

    Raises CustomOpError if the function fails or does not return a time.
    """
    entry = ESTIMATORS.find(op_name(op.name), device=device.name) if ESTIMATORS and "::" in op.name else None
    if entry is None or (op.reason is not None and not op.args):
        return None
    invoked = OpInvokeInfo(op)
    result = _called(op, entry.function, invoked, DeviceFacts(device))
    seconds = result.execution_time_s if isinstance(result, PerformanceModel.Result) else result
    if not _is_amount(seconds, MAX_SECONDS):
        raise CustomOpError(
            f"{entry.place}: the estimator of {op.name} returned {_shown(result)}, which is not a time in seconds"
        )
    return _estimate(float(seconds) * 1e6, entry, invoked)


def _estimate(value: Value, entry: UserFunction, invoked: OpInvokeInfo) -> Estimate[Value]:
    assumed = "the result is assumed to have the shape and dtype of the first tensor" if invoked.assumed_out else ""
    return Estimate(value, entry.shown, assumed)


def has_own_cost(op: ReplayOp) -> bool:
    """Check whether a user registered a cost for the op on any device: an estimator, properties, or a tile program."""
    if "::" not in op.name or (op.reason is not None and not op.args):
        return False
    registered = {
        name for kind in (ESTIMATORS, OpInvokeInfo.properties, PROGRAMS) for entry in kind for name in entry.ops
    }
    return not registered.isdisjoint({op_name(op.name), op_name(op.called)})


def _is_amount(value: Any, limit: float) -> bool:
    """Check whether a user's value is a number from 0 to `limit`; numpy numbers are accepted, booleans are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value
    return bool(0 <= number <= limit)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a user's class may fail to print itself
        text = f"a {type(value).__name__} whose repr fails with {type(error).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def property_terms(op: ReplayOp, device: DeviceProfile, state: State = "network") -> Estimate[dict[str, float]] | None:
    """Return the cost terms in microseconds from a user's properties of `op`; None if none are registered.

    Raises CustomOpError if the function fails or does not return PerformanceProperties.
    """
    entry = OpInvokeInfo.properties.find(op_name(op.name)) if OpInvokeInfo.properties and "::" in op.name else None
    if entry is None or (op.reason is not None and not op.args):
        return None
    invoked = OpInvokeInfo(op)
    properties = _called(op, entry.function, invoked)
    wrong = _wrong_in(properties)
    if wrong is not None or not isinstance(properties, PerformanceProperties):
        raise CustomOpError(f"{entry.place}: the properties of {op.name} are {wrong}")
    return _estimate(terms_of(properties, device, state), entry, invoked)


def _wrong_in(properties: object) -> str | None:
    """Return the error in a user's properties as text; None if they are valid."""
    if not isinstance(properties, PerformanceProperties):
        return f"{_shown(properties)}, no PerformanceProperties"
    for name in ("memory_read_bytes", "memory_write_bytes", "memory_readwrite_bytes"):
        if not _is_amount(getattr(properties, name), MAX_AMOUNT):
            return f"wrong: {name} is {_shown(getattr(properties, name))}, not a number of bytes"
    by_dtype = cast("object", properties.compute_ops)
    if not isinstance(by_dtype, dict):
        return f"wrong: compute_ops is {_shown(by_dtype)}, not a dict from dtype to ComputeOps"
    for dtype, ops in cast("dict[object, object]", by_dtype).items():
        if not isinstance(ops, ComputeOps):
            return f"wrong: compute_ops[{_shown(dtype)}] is {_shown(ops)}, not a ComputeOps"
        if not (_is_amount(ops.mma_ops, MAX_AMOUNT) and _is_amount(ops.gp_ops, MAX_AMOUNT)):
            return f"wrong: compute_ops[{_shown(dtype)}] is {_shown(ops)}, which has no valid numbers of operations"
    return None


def terms_of(properties: PerformanceProperties, device: DeviceProfile, state: State = "network") -> dict[str, float]:
    """Return the launch, cube, vector, hbm (or core load) and l2 times in microseconds of an op with these properties.

    All terms but launch overlap (`overlap_p`). The launch time depends on the number of vector cores: as many as the
    bytes occupy, or more if the operations take longer than starting another core. An op with matrix operations has the
    launch time of the cube. A dtype unknown to the cube runs at the float32 rate, so that it is never free. `state`
    determines the share of the bytes in L2: none in cold caches, as many as fit in warm caches, and the usual share in
    a network.
    """
    rates, freq = device.rates, device.freq_hz
    cube = vector = 0.0
    cores = device.aiv_cores
    for dtype, ops in properties.compute_ops.items():
        name = str(dtype).removeprefix("torch.")
        cube += ops.mma_ops / 2 / (mac_rate(name, device, False) * rates.mac_efficiency * device.aic_cores * freq)
        lanes = VECTOR_BYTES_PER_CYCLE / max(2, itemsize(name))
        vector += ops.gp_ops / (lanes * cores * freq)
    busy = min(cores, int(vector * cores * 1e6 / rates.launch_one_us))
    read = properties.memory_read_bytes + properties.memory_readwrite_bytes
    write = properties.memory_write_bytes + properties.memory_readwrite_bytes
    moved = read + write
    resident = {
        "cold": 0.0,
        "warm": min(1.0, device.l2_bytes / moved) if moved > 0 else 1.0,
        "network": resident_share(moved, device),
    }[state]
    term, far, cache = memory_us(read, write, cores, resident, device)
    parts = {"cube": cube * 1e6, "vector": vector * 1e6, term: far, "l2": cache}
    p = rates.overlap_p
    norm = sum(value**p for value in parts.values())
    share = norm ** (1 / p) / norm if norm > 0 else 0.0
    blocks = max(blocks_for(max(read, write), device), busy)
    one_us, full_us = rates.launch_one_us, rates.launch_full_us
    if cube:
        one_us, full_us = rates.cube_launch_us, rates.mix_launch_us if vector else rates.cube_launch_us
    launch = launch_between(one_us, full_us, blocks, rates)
    return {"launch": launch, **{name: value**p * share for name, value in parts.items()}}


def _called(op: ReplayOp, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (Exception, SystemExit) as error:  # user code may raise anything
        name = getattr(function, "__name__", type(function).__name__)
        raise CustomOpError(
            f"{failed_at(error, _OWN_FILES) or place_of(function)}: {name} failed for {op.name}: "
            f"{type(error).__name__}: {_text(error)}",
            hint="The arguments are op_invoke_info.args; `opreplay plan TRACE --explain OP` shows what was recorded.",
        ) from error


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as failing:  # a user's exception may fail to print itself
        text = f"str() of the error raised {type(failing).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def load_custom_ops(folder: str | Path | None) -> list[Path]:
    """Run every .py file of a folder, sorted by name, so that it registers its ops.

    Files that were loaded before are skipped. A folder with an __init__.py is imported as a package, and then the files
    that this import did not load are run. If a file fails, the remaining files are still loaded. CustomOpError then
    lists every failure with file and line. Raises UsageError if `folder` is not a folder. If it is None, nothing is
    loaded.
    """
    if folder is None:
        return []
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder", hint="Give a folder of .py files.")
    failures: list[str] = []
    hints: list[str] = []
    loaded: list[Path] = []
    init = path / "__init__.py"
    files = [file for file in sorted(path.glob("*.py")) if file.name not in ("__init__.py", "__main__.py")]
    run = import_from_package if init.is_file() else _run_alone
    for file in [init, *files] if init.is_file() else files:
        try:
            with loading(f"--plugin {folder}"):
                loaded += import_package(path) if file == init else run(file)
        except (Exception, SystemExit) as error:  # user code may raise anything
            hints += [hint] if (hint := missing_op_hint(error)) else []
            failures.append(f"{failed_at(error) or file.resolve()}: {type(error).__name__}: {_text(error)}")
            if file == init:
                break
    if failures:
        remedy = (
            f"Fix these files, or name only the files of {path} that you need: opreplay stops if one that you "
            "named fails."
        )
        raise CustomOpError(
            f"{plural(len(failures), 'file')} of {path} failed: " + "; ".join(failures),
            hint=" ".join(dict.fromkeys((*hints, remedy))),
        )
    return loaded


def _run_alone(file: Path) -> list[Path]:
    """Run a file that belongs to no package. Returns the file in a list, or an empty list if it ran before."""
    return [file] if run_file(file) else []
