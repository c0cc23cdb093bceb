"""Measured times of a program: read from a table, the factor and band that they give, and where that ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opreplay.replay.ascend import load_device
from opreplay.replay.tile.chip import TileTime, estimate
from opreplay.replay.tile.measured import Calibration, Row, calibrate, read_times, with_measured
from opreplay.replay.tile.program import Bound, Program, bind
from opreplay.traces.errors import OpReplayError, UsageError
from opreplay.traces.model import TensorMeta

PROGRAM = """
@tile.kernel("mylib::double", reference=lambda x: x + x)
def double(x, y: tile.Out, *, rows=8):
    for r in tile.blocks(x.shape[0], rows):
        t = tile.load(x[r])
        tile.store(y[r], t + t)
"""
DEVICE = load_device("910b4")
SIZES = (512, 1024, 2048, 4096, 8192)


@pytest.fixture
def program(programs_of: Callable[[str], tuple[Program, ...]]) -> Program:
    return programs_of(PROGRAM)[0]


def bound(program: Program, n: int, dtype: str = "float16", **given: Any) -> Bound:
    return bind(program, {"x": TensorMeta(shape=(n, 1024), dtype=dtype)}, given)


def row(n: int, time_us: float, **changes: Any) -> Row:
    one = Row(
        place=f"times.csv:{n}",
        folder=Path("."),
        program="double",
        soc="Ascend910B4",
        case=f"x=f16[{n},1024]",
        settings="rows=8",
        cores=None,
        l2="warm",
        time_us=time_us,
    )
    return msgspec.structs.replace(one, **changes)


def times(program: Program, ratios: Sequence[float], **changes: Any) -> list[Row]:
    """Rows that took `ratios` of what is predicted."""
    made = [estimate(bound(program, n), DEVICE, state="warm").time_us for n in SIZES]
    return [row(n, ratio * us, **changes) for n, us, ratio in zip(SIZES, made, ratios, strict=False)]


def predicted(program: Program, known: Calibration, one: Bound, state: Any = "warm") -> TileTime:
    return with_measured(estimate(one, DEVICE, state=state), one, DEVICE, state, known)


def test_the_factor_is_the_geometric_mean_and_the_band_that_of_cases_left_out(program: Program) -> None:
    ratios = (1.2, 1.3, 1.25, 1.15, 1.3)
    known = calibrate(program, DEVICE, times(program, ratios))
    assert not known.refused
    logs = [math.log(ratio) for ratio in ratios]
    assert known.factor == pytest.approx(math.exp(sum(logs) / 5))
    left_out = [x - (sum(logs) - x) / 4 for x in logs]
    # 90 % quantile of t for four degrees of freedom: wider than what the cases themselves would say.
    assert known.width == pytest.approx(1.533 * math.sqrt(sum(x * x for x in left_out) / 5))
    for one, ratio, x in zip(known.compared, ratios, left_out, strict=True):
        assert one.error == pytest.approx(1 / ratio - 1)
        assert one.held_out_error == pytest.approx(math.exp(-x) - 1)

    inside = bound(program, 3000)
    alone, made = estimate(inside, DEVICE, state="warm"), predicted(program, known, inside)
    assert (made.confidence, made.outside) == ("calibrated", "")
    assert made.time_us == pytest.approx(alone.time_us * known.factor)
    assert made.high_us / made.time_us == pytest.approx(math.exp(known.width))
    assert made.launch_us < made.overlapped_us <= made.time_us <= made.serial_us
    # In a step less is known of what the caches hold and of neighbours than in the loop that was timed.
    step = predicted(program, known, inside, "network")
    assert step.high_us / step.time_us > made.high_us / made.time_us


def test_an_outlier_moves_the_factor_little_and_the_band_much(program: Program) -> None:
    plain = calibrate(program, DEVICE, times(program, (1.2, 1.2, 1.2, 1.2, 1.2)))
    one_off = calibrate(program, DEVICE, times(program, (1.2, 1.2, 1.2, 1.2, 1.7)))
    assert plain.width == pytest.approx(math.log(1.05))
    assert one_off.factor == pytest.approx(1.2, rel=0.03)
    assert one_off.width > 3 * plain.width


def test_rows_that_tell_the_same_arguments_are_one_case(program: Program) -> None:
    rows = times(program, (1.2, 1.3))
    again = [
        msgspec.structs.replace(rows[0], cores=8),
        msgspec.structs.replace(rows[0], settings="rows=4"),
        msgspec.structs.replace(rows[1], time_us=rows[1].time_us),
    ]
    known = calibrate(program, DEVICE, [*rows, *again])
    assert known.cases == 2
    assert known.refused == "measured twice: 3 different cases are needed"
    made = predicted(program, known, bound(program, 1024))
    assert (made.confidence, made.factor) == ("uncalibrated", 1.0)
    assert all(one.held_out_error is None for one in known.compared)


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        ((), "not measured there"),
        ((1.0,), "measured once"),
        ((0.5, 1.0, 2.0), "the measured cases predict each other"),
        ((1000.0, 1010.0, 1000.0), "1,003 times as long as predicted: are the times in microseconds"),
        ((0.001, 0.001, 0.001), "1,000 times as short"),
    ],
)
def test_what_says_too_little_is_not_calibrated(ratios: tuple[float, ...], says: str, program: Program) -> None:
    known = calibrate(program, DEVICE, times(program, ratios))
    assert says in known.refused
    assert predicted(program, known, bound(program, 1024)).confidence == "uncalibrated"


def test_on_other_cores_and_devices_of_a_file(program: Program, tmp_path: Path) -> None:
    import opreplay.replay.ascend.devices as devices

    (tmp_path / "mine.toml").write_text((Path(devices.__path__[0]) / "910b4.toml").read_text())
    known = calibrate(program, DEVICE, times(program, (1.2, 1.2, 1.2), soc="mine.toml", folder=tmp_path))
    assert known.factor == pytest.approx(1.2)
    one = bound(program, 1024)
    made = with_measured(estimate(one, DEVICE, state="warm", cores=16), one, DEVICE, "warm", known)
    assert made.outside.startswith("cores=16, but measured from ")


def test_rows_of_other_devices_and_programs_are_left_alone(program: Program) -> None:
    rows = times(program, (1.2, 1.2, 1.2))
    others = [
        msgspec.structs.replace(rows[0], soc="910b3", time_us=9e9),
        msgspec.structs.replace(rows[0], program="other", case="?"),
    ]
    assert calibrate(program, DEVICE, [*rows, *others]).factor == pytest.approx(1.2)
    with pytest.raises(UsageError, match=r"times.csv:512: .*910x"):
        calibrate(program, DEVICE, [*rows, msgspec.structs.replace(rows[0], soc="910x")])


@pytest.mark.parametrize(
    ("one", "says"),
    [
        ({"n": 65536}, "x[0]=65536, but measured from 512 to 8192"),
        ({"n": 128}, "x[0]=128, but measured from 512 to 8192"),
        ({"n": 1024, "dtype": "float32"}, "x=float32, but measured with float16"),
        ({"n": 1024, "rows": 16}, "rows=16, but measured from 8 to 8"),
    ],
)
def test_what_lies_far_outside_is_extrapolated(one: dict[str, Any], says: str, program: Program) -> None:
    known = calibrate(program, DEVICE, times(program, (1.4, 1.4, 1.45, 1.4, 1.4)))
    made = predicted(program, known, bound(program, **one))
    alone = estimate(bound(program, **one), DEVICE, state="warm")
    assert (made.confidence, made.outside) == ("uncalibrated", says)
    # Wide enough for the factor and for none.
    assert made.low_us <= alone.time_us / 2
    assert made.high_us >= made.time_us * 2


HEAD = "program,soc,shape,tiling,time_us\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("program,soc,shape\n", "no column time_us"),
        ("program,kernel,soc,shape,time_us\n", "columns program and kernel have the same meaning"),
        (HEAD + "double,910b4,x=f16[8,8],,3.0\n", "times.csv:2: the number of cells differs"),
        (HEAD + 'double,910b4,"x=f16[8,8]",,fast\n', "'fast' is not a time"),
        (HEAD + 'double,910b4,"x=f16[8,8]",,-1\n', "'-1' is not a time"),
        (HEAD + 'double,910b4,"x=f16[8,8]",,inf\n', "'inf' is not a time"),
        ('program,soc,case,time_us,cores\ndouble,910b4,"x=f16[8,8]",3,all\n', "'all' is not a number of cores"),
        ('kernel,soc,case,time_us,l2\ndouble,910b4,"x=f16[8,8]",3,hot\n', "'hot' is not a state of L2"),
        (HEAD + 'double,910b4,"x=f16[8,8',  "the number of cells differs"),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(OpReplayError) as caught:
        read_times(path)
    assert says in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"case": "z=f16[8,8]"}, "times.csv:512: double has no argument z"),
        ({"settings": "rows"}, "times.csv:512: 'rows' is not an argument"),
        ({"settings": "rows=4096"}, "UB: "),
    ],
)
def test_a_case_that_does_not_fit_is_told_with_its_line(changes: dict[str, str], says: str, program: Program) -> None:
    with pytest.raises(UsageError) as caught:
        calibrate(program, DEVICE, [row(512, 3.0, **changes)])
    assert says in str(caught.value)
    assert str(caught.value).startswith("times.csv:512: ")


@given(text=st.text(alphabet="program,soc\n\"'12.x=[]\0 é", max_size=80), head=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_rows_or_a_clear_error(text: str, head: bool, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text((HEAD if head else "") + text, encoding="utf-8")
    try:
        rows = read_times(path)
    except OpReplayError:
        return
    assert all(one.time_us > 0 for one in rows)
