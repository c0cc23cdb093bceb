# pyright: strict
"""Fits the table of transports between dies to measured transfers, and compares it with runs that it did not see."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from opreplay.replay.ascend.calibrate.communication import by_soc, compared_of, compared_with, comparisons_of
from opreplay.replay.ascend.cost.collective import choose_algorithm
from opreplay.replay.ascend.cost.sizes import total_bytes
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.devices.transports import Transport, Work, transport_named, transports, work_of
from opreplay.replay.ascend.measured.accuracy import Compared
from opreplay.replay.ascend.measured.communication import MAX_FILE_BYTES, Transfer, is_communication, read_transfers
from opreplay.replay.ascend.profile import Quantity
from opreplay.replay.ir.kernel import KernelCall
from opreplay.traces.folders import open_regular, read_regular
from opreplay.traces.model import TensorSpec

TINY_BYTES = 4096
"""Packets below it tell the start."""
LARGE_BYTES = 500e3
"""Packets from it on tell the rate."""


def leave_one_run_out(pairs: Sequence[tuple[Transfer, str]]) -> list[tuple[Compared, str]]:
    """Predict every transfer by a table fitted without its run; transports seen only in that run use the values that
    are not fitted.
    """
    runs = sorted({row.run for row, _ in pairs})
    out: list[tuple[Compared, str]] = []
    for run in runs:
        table = fit_transports([pair for pair in pairs if pair[0].run != run])
        for row, soc in pairs:
            if row.run == run and (comparison := compared_of(row, soc, table)) is not None:
                out.append((comparison, soc))
    return out


def fit_transports(pairs: Sequence[tuple[Transfer, str]]) -> dict[str, Transport]:
    """Fit a table of transports to measured transfers (with their SoCs); all values are medians.

    The start latency comes from tiny packets, the rates from large packets by kind of work; an SoC has rates of its own
    if it was measured. Unmeasured values come from the shipped table if it does not fit them either, otherwise from its
    HCCS entry.
    """
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
    fitted: dict[str, Transport] = {}
    for name, shipped in transports().items():
        measured = {key: values for key, values in rates.items() if key[0] == name}
        if not measured:
            if shipped.copy.confidence != "fitted":
                fitted[name] = shipped
            continue
        works = _by_work(measured)
        socs: dict[str, dict[Work, Quantity]] = {}
        for (_, work, soc), values in measured.items():
            socs.setdefault(soc, {})[work] = _rate(values)
        every = [value for values in measured.values() for value in values]
        fitted[name] = Transport(
            latency=_quantity(statistics.median(starts[name]) if starts[name] else shipped.latency.value, "us"),
            copy=works.get("copy") or _rate(every),
            reduce=works.get("reduce"),
            send=works.get("send"),
            socs=socs,
        )
    return fitted


def _by_work(rates: dict[tuple[str, Work, str], list[float]]) -> dict[Work, Quantity]:
    """Return the rate of each kind of work over SoCs, each SoC with one vote."""
    votes: defaultdict[Work, list[float]] = defaultdict(list)
    for (_, work, _), values in rates.items():
        votes[work].append(statistics.median(values))
    return {work: _rate(values) for work, values in votes.items()}


def _rate(values: Sequence[float]) -> Quantity:
    return _quantity(statistics.median(values), "byte/s")


def _quantity(value: float, unit: str) -> Quantity:
    digits = 4 - math.ceil(math.log10(abs(value))) if value else 0
    return Quantity(value=round(value, digits), unit=unit, source="median of measured packets", confidence="fitted")


class MiscRow(msgspec.Struct, frozen=True, kw_only=True):
    """A collective from a vendor's readme: data moved, number of ranks, and its time or rate."""

    name: str
    soc: str
    call: KernelCall
    measured_us: float
    source: str


_MOE = re.compile(r"DeepEP (dispatch|combine) (normal|low latency)")
_TOKENS = re.compile(r"(\d+) tokens(?: hidden (\d+) top-(\d+))?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) (KB|MB)")
_RATE = re.compile(r"(\d+(?:\.\d+)?) GB/s")
NORMAL_TOKENS, HIDDEN, TOP_K = 4096, 7168, 8
"""Of DeepEP's test of large batches, and of its small ones; the readmes say it once."""


def read_misc(path: str | Path) -> list[MiscRow]:
    """Read the collectives from a table of vendor figures (columns source, soc, op, shape, dtype, ranks, us, other).

    These are expert dispatch and combine, and transfers from one die to another. Rows of other kinds are left out, and
    so are collectives whose source does not give the ranks. A rate is converted to the time of its bytes.
    """
    text = read_regular(path, MAX_FILE_BYTES).decode("utf-8", "replace")
    cells = [{key: value or "" for key, value in row.items() if key} for row in csv.DictReader(text.splitlines())]
    return [row for row in map(_misc_row, cells) if row is not None]


def _moe_row(row: dict[str, str], moe: re.Match[str], rate: re.Match[str] | None) -> MiscRow | None:
    """Return the row of sending tokens to their experts' ranks or back; None without a time or rate."""
    tokens = _TOKENS.search(row.get("shape", ""))
    count = int(tokens[1]) if tokens else 128 if moe[2] == "low latency" else NORMAL_TOKENS
    dtype, itemsize = ("int8", 1) if row.get("dtype") == "int8" else ("bfloat16", 2)
    spec = TensorSpec(shape=(count * TOP_K, HIDDEN), dtype=dtype)
    size = count * TOP_K * HIDDEN * itemsize
    call = KernelCall(
        type=f"MoeDistribute{moe[1].title()}", inputs=(spec,), outputs=(spec,), attrs={"world_size": int(row["ranks"])}
    )
    measured = float(row["us"]) if row.get("us") else size / float(rate[1]) / 1e3 if rate else 0.0
    return (
        MiscRow(name=row["op"], soc="910c", call=call, measured_us=measured, source=row["source"]) if measured else None
    )


def _misc_row(row: dict[str, str]) -> MiscRow | None:
    op, rate = row.get("op", ""), _RATE.search(row.get("other", ""))
    if (moe := _MOE.match(op)) is not None and row.get("ranks", "").isdigit():
        return _moe_row(row, moe, rate)
    if "(SDMA)" in op and rate is not None and (size := _SIZE.search(row.get("shape", ""))) is not None:
        count = round(float(size[1]) * (1 << 10 if size[2] == "KB" else 1 << 20))
        spec = TensorSpec(shape=(count,), dtype="uint8")
        call = KernelCall(type="SDMA", inputs=(spec,), outputs=(spec,))
        return MiscRow(name=op, soc="910b1", call=call, measured_us=count / float(rate[1]) / 1e3, source=row["source"])
    return None


def compared_misc(row: MiscRow) -> Compared:
    """Compare a vendor's figure with the link model, without the launch: the figures are of kernels on the device."""
    count = total_bytes(row.call.inputs)
    if row.call.type == "SDMA":
        predicted = transports()["SDMA"].time_us(count, "send")
    else:
        predicted = choose_algorithm(row.call, load_device(row.soc)).us
    return compared_with(row.call, row.measured_us, predicted)


def of_folder(folder: Path, *, cross: bool) -> dict[str, list[tuple[str, str, list[Compared], bool]]]:
    """Return, by section of the error table: (file, SoC, its transfers, whether the shipped table was fitted to them).

    Transfer tables are split by SoC; vendor figures are one section. `cross` predicts each profiled run from the
    others.
    """
    shipped: list[tuple[str, str, list[Compared], bool]] = []
    unseen: list[tuple[str, str, list[Compared], bool]] = []
    every: list[Compared] = []
    for path in sorted(folder.glob("*.csv")):
        if is_communication(path):
            pairs = [(row, row.soc) for row in read_transfers(path).rows]
            comparisons = comparisons_of(pairs)
            shipped += [(path.name, soc, of_soc, True) for soc, of_soc in by_soc(comparisons).items()]
            every += [comparison for comparison, _ in comparisons]
            if cross:
                unseen.append((path.name, "", [comparison for comparison, _ in leave_one_run_out(pairs)], False))
        elif is_misc(path) and (rows := read_misc(path)):
            vendors = [compared_misc(row) for row in rows]
            shipped.append((path.name, "", vendors, True))
            every += vendors
    if every:
        shipped.append(("communication", "", every, True))
    return {"shipped": shipped, "unseen_table": unseen}


def is_misc(path: Path) -> bool:
    """Check whether a file is a table of vendor figures."""
    try:
        with open_regular(path, MAX_FILE_BYTES) as stream:
            header = stream.readline(1 << 16).decode("utf-8", "replace")
        return {"source", "soc", "op", "ranks", "us", "other"} <= set(header.strip().split(","))
    except OSError:
        return False
