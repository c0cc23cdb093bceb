"""Planted defects are found, each with its case: some of every kind; all of them are `benchmarks/check_defects.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.initializers.user_code import load_user_code, user_module
from opreplay.replay.session.checking import check

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

PLANTED = Path(__file__).with_name("planted.py")

FEW = {
    "planted::half_is_off": "float16",
    "planted::strides_of_second_ignored": "y",
    "planted::empty_divides_by_zero": "empty",
    "planted::inner_tail_of_4": "sizes",
    "planted::writes_beside": "sliced",
    "planted::returns_a_view": "",
    "planted::fake_is_contiguous": "transposed",
    "planted::fake_is_missing": "",
    "planted::gradient_of_second_negated": "",
    "planted::noise": "",
    "planted::loses_workspace": "kept",
    "planted::cuts_to_the_shorter": "too short",
    "planted::fake_specializes": "torch.export",
    "planted::alpha_ignored": "alpha=",
    "planted::third_of_list_ignored": "3 in a list",
    "planted::multiples_of_7": "multiples",
    "planted::outer_dimensions_swapped": "outer dimensions swapped",
    "planted::nan_dropped": "NaN",
    "planted::denormals_flushed": "denormal",
    "planted::half_sums_in_half": "bfloat16 in long rows",
    "planted::quantized_in_half": "",
    "planted::split_among_threads": "by 3 threads",
    "planted::one_workspace_for_all": "callers at once",
    "planted::seeds_the_generator": "state of torch",
    "planted::gradient_of_second_with_first": "only y",
    "planted::approximate_ignored": "approximate=tanh",
    "planted::number_becomes_a_vector": "no dimension",
    "planted::gradient_of_zero_rows_is_nan": "rows of zeros",
    "planted::sum_of_no_columns_is_not_written": "no columns",
    "planted::column_of_a_square_is_a_row": "one column of y, squares",
    "planted::one_beyond_a_block": "uneven sizes",
    "planted::columns_summed_in_half": "in long columns",
    "planted::number_decides_on_the_dtype": "y zero-dimensional, of float64",
    "planted::last_but_one_of_two": "one dimension more, dim=-2",
    "planted::integers_are_cut": "int32 of both signs",
}
"""Op → a part of the case that shows its defect."""


@pytest.fixture(scope="module")
def defects() -> dict[str, object]:
    load_user_code(str(PLANTED), flag="--plugin")
    return {defect.op: defect for defect in user_module(PLANTED).DEFECTS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", FEW)
def test_a_defect_is_found_with_its_case(defects, op: str) -> None:
    defect = defects[op]
    found = check(op, against=defect.against, shapes=defect.shapes, points=defect.points, isolation="none")
    (shown,) = [one for one in found.points if one.verdict in ("fail", "missing")][:1]
    assert FEW[op] in " ".join(case.case for case in shown.of("fail", "missing"))
    assert shown.detail


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("defects")
def test_an_op_without_a_fake_kernel_is_told_to_register_one() -> None:
    op = "planted::fake_is_missing"
    found = check(op, shapes=["16x32"], points=["shape inference", "dynamic shapes"], isolation="none")
    assert [point.verdict for point in found.points] == ["missing", "missing"]
    for point in found.points:
        assert not point.of("fail")
        assert all(f'register_fake("{op}")' in case.detail for case in point.of("missing"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "kind"),
    {
        "planted::negates_second_meanwhile": "one tensor for x and y",
        "planted::returns_what_is_given_twice": "one tensor for x and y",
        "planted::rows_in_one_launch": "many rows",
        "planted::batches_in_one_launch": "many rows",
        "planted::inner_rows_in_one_launch": "many inner rows",
    }.items(),
)
def test_nothing_else_finds_what_these_cases_find(defects, op: str, kind: str) -> None:
    defect = defects[op]
    found = check(op, against=defect.against, shapes=defect.shapes, points=defect.points, isolation="none")
    (point,) = found.points
    assert {one.case.partition(":")[0] for one in point.of("fail", "missing")} == {kind}
    assert point.of("pass")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", ["f32[16,32]", "bf16[16,32]"])
def test_numbers_on_the_edge_of_two_whole_ones_may_be_either(defects, shape: str) -> None:
    right, by_product = f"{PLANTED}:right_quantized", f"{PLANTED}:quantized_by_product"
    found = check(by_product, against=right, shapes=[shape], points=["correctness"], isolation="none")
    assert [one.detail for one in found.point("correctness").of("fail")] == []
    assert found.point("correctness").of("pass")


@pytest.mark.parametrize("op", ["planted::crashes_at_odd_width", "planted::aborts_on_integers"])
def test_a_crash_costs_its_case(defects, op: str) -> None:
    found = check(op, against=defects[op].against, points=["bad input"], plugins=[str(PLANTED)])
    (point,) = found.points
    assert "crashes: SIG" in point.cases[0].detail
    assert point.of("pass")


def test_a_hang_costs_its_case(tmp_path: Path) -> None:
    plugin = tmp_path / "waits.py"
    plugin.write_text(
        "import time, torch\n"
        "@torch.library.custom_op('waits::op', mutates_args=())\n"
        "def op(x: torch.Tensor) -> torch.Tensor:\n"
        "    if x.numel() == 0:\n"
        "        time.sleep(600)\n"
        "    return x + 1\n"
    )
    found = check("waits::op", shapes=["4x6"], points=["correctness"], plugins=[str(plugin)], limit_s=2.0)
    hung = found.point("correctness").of("fail")
    assert [one.case.partition(":")[0] for one in hung] == [
        "empty",
        "no rows",
        "no columns",
        "in memory full of NaN",
    ]
    assert all("hangs: no result after 2 s" in one.detail for one in hung)
