"""Python functions that write to their arguments, which no schema declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.session.checking import check

FUNCTIONS = """
import torch


def scaled(x):
    return x * 2


def scaled_in_place_if_transposed(x):
    return x * 2 if x.is_contiguous() or x.requires_grad else x.mul_(2)


def doubled(x):
    return x.mul_(2)


def doubled_reference(x):
    return x.copy_(x + x)
"""


SHARING = """
def scaled(x, factor=2.0):
    return x * factor


def not_scaled_by_one(x, factor=2.0):
    return x if factor == 1.0 else x * factor


def flat(x, start=0):
    return x.flatten(start) * 1


def flat_view(x, start=0):
    return x.flatten(start)
"""


@pytest.mark.parametrize(
    ("name", "reference", "failing"),
    [
        ("scaled", "scaled", []),
        ("not_scaled_by_one", "scaled", ["factor=1.0"]),
        ("not_scaled_by_one", "not_scaled_by_one", []),
        ("flat_view", "flat", []),
    ],
)
def test_a_function_that_sometimes_returns_its_argument_fails(
    tmp_path: Path, name: str, reference: str, failing: list[str]
) -> None:
    path = tmp_path / "functions.py"
    path.write_text(SHARING)
    report = check(
        f"{path}:{name}", against=f"{path}:{reference}", shapes=("f32[4,6]",), points=["schema"], isolation="none"
    )
    (checked,) = report.points
    assert checked.of("pass")
    assert [case.case.partition(":")[0] for case in checked.of("fail")] == failing


@pytest.mark.parametrize(
    ("name", "reference", "verdict"),
    [
        ("scaled", "scaled", "pass"),
        ("scaled_in_place_if_transposed", "scaled", "fail"),
        ("doubled", "doubled_reference", "pass"),
        ("scaled", None, "not applicable"),
    ],
)
def test_a_function_writes_only_what_its_reference_writes(
    tmp_path: Path, name: str, reference: str | None, verdict: str
) -> None:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    against = None if reference is None else f"{path}:{reference}"
    report = check(f"{path}:{name}", against=against, shapes=("f32[4,6]",), points=["schema"], isolation="none")
    (checked,) = report.points
    assert checked.verdict == verdict
    if verdict == "fail":
        assert {case.detail for case in checked.cases if case.verdict == "fail"} == {
            "writes to x, unlike the reference"
        }
