"""Values of run options that are refused, and numbers of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.job.settings import Settings
from opreplay.traces.errors import UsageError


@pytest.mark.parametrize(
    "options",
    [
        {"op_time_s": -1},
        {"op_time_s": float("nan")},
        {"op_time_s": "1s"},
        {"threads": 0},
        {"cache": "hot"},
        {"isolation": "thread"},
        {"l2": "lukewarm"},
        {"mode": None},
    ],
)
def test_a_wrong_value_is_a_usage_error(options: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        RunOptions(**options)


@pytest.mark.parametrize("options", [{"plugins": "my_ops.py"}, {"threads": 1.5}, {"device": 3}])
def test_a_value_of_the_wrong_type_is_a_usage_error(options: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Settings.of(RunOptions(**options))


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: Any = {"threads": np.int64(2), "op_time_s": np.float64(0.5), "seed": np.int32(3), "lanes": np.uint8(1)}
    assert Settings.of(RunOptions(**numbers)) == Settings.of(RunOptions(threads=2, op_time_s=0.5, seed=3))
    assert {type(getattr(RunOptions(**numbers), name)) for name in numbers} == {int, float}
