# pyright: strict
"""Transfers between dies, predicted against measured, and the fit that makes the table of transports from them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from opreplay.replay.ascend.calibrate.validate import Figures, Validation, figures_of
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.devices.transports import Transport, Work, transport_named, transports, work_of
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.measured.accuracy import Compared, errors_of
from opreplay.replay.ascend.measured.communication import Transfer, Transfers, read_transfers
from opreplay.replay.ascend.profile import Quantity
from opreplay.traces.errors import Malformed, UsageError
from opreplay.traces.model import TensorSpec

BAND = 1.25
"""80 % factor of a transfer on a known transport, from `leave_one_run_out` of the public profiles."""
TINY_BYTES = 4096
"""Packets below it tell the start."""
LARGE_BYTES = 500e3
"""Packets from it on tell the rate."""


def transfer_us(one: Transfer, soc: str, table: dict[str, Transport] | None = None) -> float | None:
    """Predicted time of all packets of a transfer, one after the other; None for a transport that is not known."""
    transport = transport_named(one.transport, table)
    if transport is None:
        return None
    work = work_of(one.op)
    return sum(count * transport.time_us(size, work, soc) for size, count in one.packets)


def compared_of(one: Transfer, soc: str, table: dict[str, Transport] | None = None) -> Compared | None:
    """The transfer beside its prediction; None where one of them is not known."""
    predicted = transfer_us(one, soc, table)
    if predicted is None or one.transit_us is None or one.transit_us <= 0:
        return None
    spec = TensorSpec(shape=(round(one.size_bytes),), dtype="uint8")
    return Compared(
        call=KernelCall(type=f"{one.op} {one.transport}", inputs=(spec,), outputs=()),
        measured_us=one.transit_us,
        predicted_us=predicted,
        low_us=predicted / BAND,
        high_us=predicted * BAND,
        count=1,
        total_us=one.transit_us,
        absolute_us=abs(predicted - one.transit_us),
        signed_us=predicted - one.transit_us,
    )


def validate_transfers(
    files: Sequence[tuple[Transfers, str]],
    *,
    cross: bool = False,
    on_step: Callable[[str], None] | None = None,
) -> Validation:
    """Errors of all measured transfers; each file with the SoC that it is of, "" where its rows say that.

    `cross` also fits the table without one profiled run at a time. Raises Malformed where nothing can be compared.
    """
    pairs = [(row, row.soc or soc) for file, soc in files for row in file.rows]
    found = [(made, soc) for row, soc in pairs if (made := compared_of(row, soc)) is not None]
    if not found:
        raise Malformed("no transfer with a time on a known transport", hint="Known are " + ", ".join(transports()))
    dropped: dict[str, int] = {}
    for file, _ in files:
        for reason, count in file.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    held: dict[str, Figures] = {}
    if cross:
        (on_step or (lambda step: None))("fitting without one profiled run at a time")
        held["unseen_table"] = figures_of([made for made, _ in leave_one_run_out(pairs)])
    socs = sorted({soc for _, soc in found})
    return Validation(
        figures=figures_of([made for made, _ in found]),
        socs={soc: errors_of([made for made, of in found if of == soc]) for soc in socs},
        compared=tuple(made for made, _ in found),
        rows=len(pairs),
        measured_rows=len(found),
        fitted_to=0,
        dropped=dropped,
        cross=held,
    )


def leave_one_run_out(pairs: Sequence[tuple[Transfer, str]]) -> list[tuple[Compared, str]]:
    """Every transfer predicted by a table that was fitted without its run; transports seen in that run alone are left
    to what is not fitted."""
    runs = sorted({row.run for row, _ in pairs})
    out: list[tuple[Compared, str]] = []
    for run in runs:
        table = fit_transports([pair for pair in pairs if pair[0].run != run])
        for row, soc in pairs:
            if row.run == run and (made := compared_of(row, soc, table)) is not None:
                out.append((made, soc))
    return out


def fit_transports(pairs: Sequence[tuple[Transfer, str]]) -> dict[str, Transport]:
    """A table of transports from measured transfers (with their SoCs), medians all: the start from tiny packets, rates
    from large ones by what is done with them; an SoC with rates of its own where it was measured. What nothing measures
    is as the shipped table has it where that is not fitted itself, else as HCCS is there."""
    starts: defaultdict[str, list[float]] = defaultdict(list)
    rates: defaultdict[tuple[str, Work, str], list[float]] = defaultdict(list)
    for row, _ in pairs:
        if row.transit_us is None or transport_named(row.transport) is None:
            continue
        count = sum(n for _, n in row.packets)
        if row.size_bytes / count < TINY_BYTES:
            starts[row.transport].append(row.transit_us / count)
    for row, soc in pairs:
        count = sum(n for _, n in row.packets)
        if row.transit_us is None or row.size_bytes / count < LARGE_BYTES:
            continue
        start = statistics.median(starts[row.transport]) if starts[row.transport] else 0.0
        rate = row.size_bytes / max(row.transit_us - count * start, 1e-3) * 1e6
        rates[row.transport, work_of(row.op), soc].append(rate)
    made: dict[str, Transport] = {}
    for name, shipped in transports().items():
        own = {key: values for key, values in rates.items() if key[0] == name}
        if not own:
            if shipped.copy.confidence != "fitted":
                made[name] = shipped
            continue
        works = _by_work(own)
        socs: dict[str, dict[Work, Quantity]] = {}
        for (_, work, soc), values in own.items():
            socs.setdefault(soc, {})[work] = _rate(values)
        every = [value for values in own.values() for value in values]
        made[name] = Transport(
            latency=_quantity(statistics.median(starts[name]) if starts[name] else shipped.latency.value, "us"),
            copy=works.get("copy") or _rate(every),
            reduce=works.get("reduce"),
            send=works.get("send"),
            socs=socs,
        )
    return made


def _by_work(rates: dict[tuple[str, Work, str], list[float]]) -> dict[Work, Quantity]:
    """Over SoCs, each with one vote."""
    votes: defaultdict[Work, list[float]] = defaultdict(list)
    for (_, work, _), values in rates.items():
        votes[work].append(statistics.median(values))
    return {work: _rate(values) for work, values in votes.items()}


def _rate(values: Sequence[float]) -> Quantity:
    return _quantity(statistics.median(values), "byte/s")


def _quantity(value: float, unit: str) -> Quantity:
    digits = 4 - math.ceil(math.log10(abs(value))) if value else 0
    return Quantity(value=round(value, digits), unit=unit, source="median of measured packets", confidence="fitted")


def read_and_validate(
    paths: Sequence[str],
    socs: Sequence[str],
    *,
    cross: bool = False,
    on_step: Callable[[str], None] | None = None,
) -> Validation:
    """Read files of transfers and compare; one SoC for all of them, one each, or none where their rows say it.

    Raises UsageError for SoCs that do not fit in number or are not known, and for none where they are needed.
    """
    if len(socs) not in (0, 1, len(paths)):
        raise UsageError(
            f"{len(paths)} files, but --soc is given {len(socs)} times",
            hint="Give --soc once for all, or once for each in the same order.",
        )
    files = [read_transfers(path) for path in paths]
    unnamed = [file.path for file in files if any(not row.soc for row in file.rows)]
    if unnamed and not socs:
        raise UsageError(f"{unnamed[0]} does not say which device was measured", hint="Give --soc.")
    names = [load_device(soc).name for soc in socs]
    return validate_transfers(with_soc(files, names), cross=cross, on_step=on_step)


def with_soc(files: Sequence[Transfers], socs: Sequence[str]) -> list[tuple[Transfers, str]]:
    """Each file with its SoC: one for all, or one each."""
    chosen = list(socs) * len(files) if len(socs) == 1 else list(socs) if socs else [""] * len(files)
    return list(zip(files, chosen, strict=True))


def as_toml(table: dict[str, Transport]) -> dict[str, object]:
    """The table as the values of `_transports.toml`."""
    return msgspec.to_builtins(table)
