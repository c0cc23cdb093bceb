from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.initializers import fill

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

NAMES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
)
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]
INTEGERS = [dtype for dtype in DTYPES if fill.is_integer(dtype)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(fill.span(tensor).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", [*DTYPES, *sorted(fill.WITHOUT_ARITHMETIC, key=str)], ids=str)
def test_same_seed_same_bytes_other_seed_other_bytes(dtype: torch.dtype) -> None:
    made = []
    for seed in (0, 0, 1):
        tensor = torch.empty(257, dtype=dtype)
        fill.plain(tensor, generator(seed))
        made.append(bytes_of(tensor))
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point and d.itemsize > 1], ids=str)
def test_normal_values_are_normal(dtype: torch.dtype) -> None:
    tensor = torch.empty(20_000, dtype=dtype)
    fill.normal(tensor, generator())
    assert tensor.double().mean().item() == pytest.approx(0, abs=0.05)
    assert tensor.double().std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point and "float4" not in str(d)], ids=str)
def test_small_floats_are_finite_and_not_all_zero(dtype: torch.dtype) -> None:
    tensor = torch.empty(1000, dtype=dtype)
    fill.normal(tensor, generator())
    assert tensor.float().isfinite().all()
    assert tensor.float().count_nonzero() > 900


@settings(deadline=None)
@given(dtype=st.sampled_from(INTEGERS), low=st.integers(0, 50), width=st.integers(1, 10**6), count=st.integers(0, 300))
def test_integers_are_in_range_and_never_all_equal(dtype: torch.dtype, low: int, width: int, count: int) -> None:
    tensor = torch.empty(count, dtype=dtype)
    fill.integers(tensor, generator(), low, low + width)
    values = tensor.to(torch.int64)
    assert ((values >= low) & (values < low + width)).all()
    if count > 1 and width > 1 and low < torch.iinfo(dtype).max:
        assert values.unique().numel() > 1


@settings(deadline=None)
@given(shape=st.lists(st.integers(0, 5), max_size=3), data=st.data())
def test_overlapping_and_expanded_tensors_are_filled_everywhere(shape: list[int], data: st.DataObject) -> None:
    strides = [data.draw(st.integers(0, 7)) for _ in shape]
    reach = 1 + sum(max(0, d - 1) * s for d, s in zip(shape, strides, strict=True))
    tensor = torch.full((reach,), 77.0).as_strided(shape, strides)
    fill.uniform(tensor, generator(), 0.0, 1.0)
    assert ((tensor >= 0) & (tensor < 1)).all()
    fill.assign(tensor, torch.full(tuple(shape), 5.0))
    assert (tensor == 5).all()


def test_large_tensors_repeat_a_block_that_is_no_round_number() -> None:
    tensor = torch.empty(3 * fill.BLOCK + 5)
    fill.normal(tensor, generator())
    assert torch.equal(tensor[: fill.BLOCK], tensor[fill.BLOCK : 2 * fill.BLOCK])
    rows = tensor[: 2048 * 1024].view(1024, 2048)
    assert rows.unique(dim=0).shape[0] == 1024


@pytest.mark.parametrize("density", [0.0, 0.25, 1.0])
def test_coins_fall_as_often_as_asked(density: float) -> None:
    mask = torch.empty(10_000, dtype=torch.bool)
    fill.coins(mask, generator(), density)
    assert mask.float().mean().item() == pytest.approx(density, abs=0.02)


def test_signs_are_plus_and_minus_one() -> None:
    tensor = torch.empty(1000, dtype=torch.bfloat16)
    fill.signs(tensor, generator())
    assert set(tensor.tolist()) == {1.0, -1.0}


@pytest.mark.parametrize("fill_it", [fill.normal, fill.plain, fill.coins, fill.signs])
def test_empty_tensors_are_fine(fill_it: Callable[[torch.Tensor, torch.Generator], None]) -> None:
    fill_it(torch.empty(0, 3), generator())
    fill_it(torch.empty(()), generator())
