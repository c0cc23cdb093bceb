"""The table of transports between dies, fitted to measured transfers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device_model.transports import compared_misc, fit_transports, leave_one_run_out, read_misc
from opreplay.replay.ascend.calibrate.communication import transfer_us, validate_transfers
from opreplay.replay.ascend.measured.accuracy import errors_of
from opreplay.replay.ascend.measured.communication import Transfer, is_communication, read_transfers


def test_a_fitted_table_has_a_start_and_rates_by_what_is_done() -> None:
    def row(op: str, size: float, us: float) -> tuple[Transfer, str]:
        return Transfer(op=op, transport="HCCS", packets=((size, 1),), transit_us=us, run="a"), "910b3"

    table = fit_transports(
        [row("hcom_allGather_", 8, 2.0), row("hcom_allGather_", 2e7, 1002.0), row("hcom_allReduce_", 1e7, 1002.0)]
    )
    made = table["HCCS"]
    assert made.latency.value == 2.0
    assert made.rate("copy", "910b3").value == pytest.approx(2e10)
    assert made.rate("reduce").value == pytest.approx(1e10)
    assert transfer_us(row("hcom_reduceScatter_", 1e6, 0)[0], "910b3", table) == pytest.approx(102.0)


def test_public_transfers(shared_ascend: Path) -> None:
    """Of the profiles that the table was fitted to, and of each run by a table fitted without it."""
    path = shared_ascend / "communication.csv"
    assert is_communication(path)
    found = read_transfers(path)
    assert validate_transfers([(found, "")]).figures.overall.median_ape < 0.05
    held = errors_of([made for made, _ in leave_one_run_out([(row, row.soc) for row in found.rows])])
    assert held.median_ape < 0.15
    misc = errors_of([compared_misc(row) for row in read_misc(path.with_name("fused_and_collective_misc.csv"))])
    assert misc.median_ape < 0.15
