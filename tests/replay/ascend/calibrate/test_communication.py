"""Transfers between dies: files of the Ascend profiler read and compared; a table fitted to some predicts others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ascend.calibrate.communication import validate_transfers
from opreplay.replay.ascend.devices.transports import transport_named, transports, work_of
from opreplay.replay.ascend.measured.communication import read_transfers
from opreplay.traces.errors import Malformed

MB = 20.97152


def bandwidth(size_mb: float, time_ms: float, sizes: dict[str, list[float]]) -> dict[str, object]:
    return {
        "Transit Size(MB)": size_mb,
        "Transit Time(ms)": time_ms,
        "Bandwidth(GB/s)": size_mb / time_ms if time_ms else 0,
        "Large Packet Ratio": 1.0,
        "Size Distribution": sizes,
    }


def report(scale: float = 1.0) -> dict[str, object]:
    """Of a step: an all-gather over HCCS, which SDMA adds up once more, and a send between servers."""
    hccs = bandwidth(7 * MB, 7 * 1.094 * scale, {str(MB): [7, 7 * 1.094 * scale]})
    nothing = bandwidth(0, 0, {})
    time = {"Elapse Time(ms)": 1.14, "Transit Time(ms)": 7.66, "Wait Time(ms)": 0}
    gather = {"RDMA": nothing, "HCCS": hccs, "PCIE": nothing, "SDMA": hccs, "SIO": nothing}
    send = {"RDMA": bandwidth(MB, 0.865 * scale, {str(MB): [1, 0.865 * scale]}), "HCCS": nothing}
    return {
        "step1": {
            "p2p": {"hcom_send__822_0_1@42": {"Communication Time Info": time, "Communication Bandwidth Info": send}},
            "collective": {
                "hcom_allGather__483_1_1@42": {"Communication Time Info": time, "Communication Bandwidth Info": gather},
                "Total Op Info": {"Communication Time Info": time, "Communication Bandwidth Info": gather},
            },
        }
    }


def written(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_communication_json_is_read_once_an_op_and_transport(tmp_path: Path) -> None:
    found = read_transfers(written(tmp_path / "communication.json", report()))
    assert [(row.op, row.transport, row.packets[0][1]) for row in found.rows] == [
        ("hcom_send__822_0_1", "RDMA", 1),
        ("hcom_allGather__483_1_1", "HCCS", 7),
    ]
    errors = validate_transfers([(found, "910b1")]).figures.overall
    assert errors.n == 2
    assert errors.median_ape < 0.02


def test_communication_matrix_json(tmp_path: Path) -> None:
    pair = {"Transport Type": "HCCS", "Transit Size(MB)": MB, "Transit Time(ms)": 1.094, "Bandwidth(GB/s)": 19.2}
    local = {**pair, "Transport Type": "LOCAL"}
    matrix = {
        "step1": {
            "collective": {"allgather-top1@42": {"0-1": pair, "0-0": local}, "allgather-total@42": {"0-1": pair}},
            "p2p": {},
        }
    }
    found = read_transfers(written(tmp_path / "communication_matrix.json", matrix))
    errors = validate_transfers([(found, "910b1")])
    assert (errors.rows, errors.measured_rows) == (2, 1)  # a copy on the die itself is no transfer
    assert errors.figures.overall.median_ape < 0.02


@pytest.mark.parametrize("text", ["[1, 2", "[]", '{"step": {"collective": 5}}', '{"step": {}}', "{}"])
def test_another_layout_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "communication.json"
    path.write_text(text)
    with pytest.raises(Malformed):
        validate_transfers([(read_transfers(path), "910b1")])


def test_validate_takes_them_from_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path / "communication.json", report(scale=2.0))
    done = CliRunner().invoke(opreplay, ["validate", str(path), "--soc", "910b1", "--format", "json"])
    assert done.exit_code == 0, done.stderr
    assert 0.45 < json.loads(done.stdout)["overall"]["median_ape"] < 0.55
    missing = CliRunner().invoke(opreplay, ["validate", str(path)])
    assert (missing.exit_code, "--soc" in missing.stderr) == (2, True)


def test_every_shipped_number_has_a_unit_and_a_source() -> None:
    for transport in transports().values():
        rates = [
            transport.copy,
            transport.reduce,
            transport.send,
            *(q for own in transport.socs.values() for q in own.values()),
        ]
        assert transport.latency.unit == "us"
        assert all(rate is None or (rate.unit == "byte/s" and rate.value > 1e9) for rate in rates)
    assert transport_named("hccs_sw") is transports()["HCCS"]
    assert transport_named("LOCAL") is None
    assert (work_of("hcom_reduceScatter_"), work_of("hcom_batchSendRecv"), work_of("hcom_broadcast")) == (
        "reduce",
        "send",
        "copy",
    )
