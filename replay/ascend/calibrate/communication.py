# pyright: strict
"""Compares predicted and measured transfers between dies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from opreplay.replay.ascend.calibrate.validate import Validation, figures_of, total_counts
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.devices.transports import Transport, transport_named, transports, work_of
from opreplay.replay.ascend.measured.accuracy import Compared, errors_of
from opreplay.replay.ascend.measured.communication import (
    Transfer,
    Transfers,
    read_transfers,
)
from opreplay.replay.ir.kernel import KernelCall
from opreplay.traces.errors import Malformed, UsageError
from opreplay.traces.model import TensorSpec

BAND = 1.25
"""Factor of the 80 % band of transfers over a known transport. Predicted times are divided and multiplied by it.

It was determined from public profiles. Each profile was predicted by a fit that excluded it.
"""


def transfer_us(transfer: Transfer, soc: str, table: dict[str, Transport] | None = None) -> float | None:
    """Return the predicted microseconds of a transfer, summed over its packets; None for an unknown transport."""
    transport = transport_named(transfer.transport, table)
    if transport is None:
        return None
    work = work_of(transfer.op)
    return sum(count * transport.time_us(size, work, soc) for size, count in transfer.packets)


def compared_of(transfer: Transfer, soc: str, table: dict[str, Transport] | None = None) -> Compared | None:
    """Return a transfer's measured and predicted times; None if it has no measured time or its transport is unknown."""
    predicted = transfer_us(transfer, soc, table)
    if predicted is None or transfer.transit_us is None or transfer.transit_us <= 0:
        return None
    spec = TensorSpec(shape=(round(transfer.size_bytes),), dtype="uint8")
    call = KernelCall(type=f"{transfer.op} {transfer.transport}", inputs=(spec,), outputs=())
    return compared_with(call, transfer.transit_us, predicted)


def compared_with(call: KernelCall, measured_us: float, predicted_us: float) -> Compared:
    """Return the measured and predicted times of a call, with the 80 % band that applies to transfers."""
    return Compared(
        call=call,
        measured_us=measured_us,
        predicted_us=predicted_us,
        low_us=predicted_us / BAND,
        high_us=predicted_us * BAND,
        count=1,
        total_us=measured_us,
        absolute_us=abs(predicted_us - measured_us),
        signed_us=predicted_us - measured_us,
    )


def comparisons_of(pairs: Iterable[tuple[Transfer, str]]) -> list[tuple[Compared, str]]:
    """Compare (transfer, SoC) pairs with predictions. Transfers that cannot be compared are left out."""
    return [(comparison, soc) for row, soc in pairs if (comparison := compared_of(row, soc)) is not None]


def by_soc(comparisons: Iterable[tuple[Compared, str]]) -> dict[str, list[Compared]]:
    """Group comparisons by SoC, sorted by SoC name."""
    grouped: dict[str, list[Compared]] = defaultdict(list)
    for comparison, soc in comparisons:
        grouped[soc].append(comparison)
    return dict(sorted(grouped.items()))


def validate_transfers(files: Sequence[tuple[Transfers, str]]) -> Validation:
    """Compute the errors of all transfers in (file, SoC) pairs.

    The SoC of a pair is "" if the rows of its file name one. Raises Malformed if no transfer can be compared.
    """
    pairs = [(row, row.soc or soc) for file, soc in files for row in file.rows]
    comparisons = comparisons_of(pairs)
    if not comparisons:
        raise Malformed(
            "the files contain no timed transfer over a known transport",
            hint="Known transports: " + ", ".join(transports()),
        )
    socs = by_soc(comparisons)
    return Validation(
        figures=figures_of([comparison for comparison, _ in comparisons]),
        socs={soc: errors_of(of_soc) for soc, of_soc in socs.items()},
        compared=tuple(comparison for comparison, _ in comparisons),
        rows=len(pairs),
        measured_rows=len(comparisons),
        fitted_to=0,
        dropped=total_counts([file.dropped for file, _ in files]),
    )


def read_and_validate(paths: Sequence[str], socs: Sequence[str]) -> Validation:
    """Read transfer files and compare them with predictions.

    Give one SoC for all files, one per file, or none if the rows name it. Raises UsageError if the number of SoCs does
    not match the files, an SoC is unknown, or a required SoC is missing.
    """
    if len(socs) not in (0, 1, len(paths)):
        raise UsageError(
            f"the number of --soc options ({len(socs)}) differs from the number of files ({len(paths)})",
            hint="Give --soc once for all files, or once per file in the same order.",
        )
    files = [read_transfers(path) for path in paths]
    unnamed = [file.path for file in files if any(not row.soc for row in file.rows)]
    if unnamed and not socs:
        raise UsageError(f"{unnamed[0]} does not name the measured device", hint="Give --soc.")
    names = [load_device(soc).name for soc in socs]
    return validate_transfers(with_soc(files, names))


def with_soc(files: Sequence[Transfers], socs: Sequence[str]) -> list[tuple[Transfers, str]]:
    """Pair each file with its SoC. `socs` holds one SoC for all files, or one per file, or is empty."""
    chosen = list(socs) * len(files) if len(socs) == 1 else list(socs) if socs else [""] * len(files)
    return list(zip(files, chosen, strict=True))
