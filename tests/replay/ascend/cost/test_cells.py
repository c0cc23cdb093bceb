"""Cells: what is known of an op, by the kind of its work, decides its band."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device, simulate_op
from opreplay.replay.ascend.cost.cells import BANDS, HELD, Cell, band_of, evidence_of, weakest, work_of
from opreplay.replay.ir.kernel import Evidence, WorkKind
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls

DEVICE = load_device("910b2")


def test_bands_widen_with_ignorance_and_with_irregular_work() -> None:
    evidence: tuple[Evidence, ...] = ("this SoC", "another SoC", "its family", "its form")
    works: tuple[WorkKind, ...] = ("product", "streaming", "irregular")
    for work in works:
        bands = [band_of(Cell(known, work)) for known in evidence]
        assert bands == sorted(bands)
    assert all(BANDS[known]["product"] <= BANDS[known]["streaming"] < BANDS[known]["irregular"] for known in evidence)


@pytest.mark.parametrize(
    ("kernel", "work"),
    [
        ("MatMulV3", "product"),
        ("Conv2D", "product"),
        ("Add", "streaming"),
        ("TopKV2", "irregular"),
        ("Gcd", "irregular"),
    ],
)
def test_the_kind_of_work_follows_from_the_kernel(kernel: str, work: WorkKind) -> None:
    assert work_of(DEVICE.family(kernel)) == work


def test_evidence_is_about_the_kernel_type_itself() -> None:
    assert evidence_of("Add", DEVICE.family("Add")) == "this SoC"
    assert evidence_of("Cummin", DEVICE.family("Cummin")) == "its family"
    assert weakest(["this SoC", "its form", "another SoC"]) == "its form"


@pytest.mark.parametrize(
    ("call", "cell"),
    [
        ("aten::mm(bf16[2048,2048],bf16[2048,2048])", ("this SoC", "product")),
        ("aten::gelu(f32[2048,2048])", ("this SoC", "streaming")),
        ("aten::kthvalue(f32[64,4096],5)", ("its family", "irregular")),
        ("aten::_fft_c2c(c64[64,1009],[1],0,True)", ("its form", "irregular")),
        ("aten::multinomial(f32[64,1000],5)", ("its form", "irregular")),
        ("aten::igamma(f32[1000,100],f32[1000,100])", ("its family", "irregular")),
        ("aten::erfinv(f32[1000,100])", ("its family", "irregular")),
        ("aten::mul(c64[1000,100],c64[1000,100])", ("its form", "streaming")),
    ],
)
def test_a_call_by_itself_has_the_band_of_its_cell(call: str, cell: tuple[Evidence, WorkKind]) -> None:
    simulated = simulate_op(plan_of_calls([Written(text=call)])[0].ops[0], DEVICE, l2="loop")
    assert (simulated.evidence, simulated.work) == cell
    assert simulated.high_us / simulated.time_us >= band_of(Cell(*cell)) * 0.999


def test_bands_held_about_as_often_as_they_should() -> None:
    for held in HELD.values():
        assert all(0.7 <= share <= 0.92 for _, share in held.values())
