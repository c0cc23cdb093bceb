"""Lines of memory that gathers, samples and interpolation fetch where cores load single elements."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.cost.lines import beyond_l2, gathered_lines, sampled_lines, touched
from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ir.kernel import KernelCall, TensorSpec

MIB = 1 << 20


def test_each_element_of_a_large_slice_fetches_a_line() -> None:
    assert gathered_lines(1 << 20, 4096, 4096, 4, 64 * MIB) == pytest.approx(1 << 20, rel=0.01)


def test_a_slice_that_a_core_holds_is_fetched_once() -> None:
    assert gathered_lines(1 << 20, 2048, 1, 4, 8 * MIB) == 8 * MIB / 128
    assert gathered_lines(100, 2048, 1, 4, 8 * MIB) == 100, "an index a row fetches no whole row"


def test_elements_beside_each_other_share_the_lines_of_few_places() -> None:
    few, many = (gathered_lines(1 << 24, along, 1 << 20, 2, along << 21) for along in (8, 64))
    assert few == pytest.approx(many / 8, rel=0.02)


def test_more_to_look_up_fetches_no_fewer_lines() -> None:
    for inner in (1, 100, 1 << 14):
        lines = [gathered_lines(n, along, inner, 2, along * inner * 2) for along in (2, 64, 1024) for n in (1, 4096)]
        assert lines[0] <= lines[2] <= lines[4]
        assert lines[1] <= lines[3] <= lines[5]


def test_all_channels_of_a_position_pass_for_each_of_them() -> None:
    assert sampled_lines(64 * 1000, 64, 2) == 64 * 1000
    assert sampled_lines(1000, 4096, 4) == 4 * 1000, "no more than the neighbours that an element is made of"


@pytest.mark.parametrize(
    ("table", "piece", "moved"),
    [
        (16 * MIB, 16 * MIB, 16 * MIB),
        (512 * MIB, MIB, 512 * MIB),
        (512 * MIB, 512 * MIB, 15 / 16 * 1024 * MIB),
        (8192 * MIB, MIB, 1024 * MIB),
    ],
)
def test_memory_gives_a_table_once_and_again_what_l2_loses(table: int, piece: int, moved: float) -> None:
    assert beyond_l2(1024 * MIB / 128, table, piece, 128 * MIB) == moved


def test_rows_and_sectors_between_neighbours_are_not_read() -> None:
    assert touched((512, 512), (256, 256), 4) == 1.0
    assert touched((512, 512), (64, 512), 4) == 0.25
    assert touched((512, 512), (512, 32), 4) == 0.5
    assert touched((64, 64), (512, 512), 2) == 1.0


def test_a_gather_of_no_recorded_dimension_is_counted_by_its_bytes() -> None:
    table, places = TensorSpec(shape=(4096, 4096), dtype="float32"), TensorSpec(shape=(64, 4096), dtype="int64")
    call = KernelCall(
        type="GatherElements", inputs=(table, places), outputs=(TensorSpec(shape=(64, 4096), dtype="float32"),)
    )
    assert predict_kernel(call, load_device("950pr"), state="cold").time_us > 0
