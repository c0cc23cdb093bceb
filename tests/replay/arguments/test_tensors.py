from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.arguments import tensors
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, Value
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.model import TensorMeta

CPU = torch.device("cpu")
ORDINARY = [name for name in tensors.DTYPES if not name.startswith("q")]


@st.composite
def metas(draw: st.DrawFn) -> TensorMeta:
    """Shapes with zero sizes and no dimensions; strides expanded, overlapping, permuted or absent."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    strides = draw(st.none() | st.tuples(*[st.integers(0, 12) for _ in shape]))
    offset = draw(st.integers(0, 7))
    return TensorMeta(shape=shape, dtype=draw(st.sampled_from(ORDINARY)), strides=strides, storage_offset=offset)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@settings(deadline=None)
@given(metas())
def test_allocates_exactly_what_is_recorded(meta: TensorMeta) -> None:
    made = tensors.allocate(meta, device=CPU)
    assert tuple(made.shape) == meta.shape
    assert made.dtype is tensors.DTYPES[meta.dtype]
    assert made.element_size() == ITEMSIZE_BYTES[meta.dtype]
    if meta.strides is not None:
        assert made.stride() == meta.strides
    elif made.numel():
        assert made.is_contiguous()
    if made.numel():
        assert made.storage_offset() == meta.storage_offset
    assert made.untyped_storage().nbytes() == budget.extent(meta) * made.element_size()


def test_expanded_tensor_takes_one_element() -> None:
    made = tensors.allocate(TensorMeta(shape=(2**40,), dtype="float32", strides=(0,)), device=CPU)
    assert made.untyped_storage().nbytes() == 4


def test_every_dtype_name_is_known_to_this_torch() -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no 4-bit floats (2.8 has)")
    assert set(ITEMSIZE_BYTES) - set(tensors.DTYPES) == set()


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        (TensorMeta(shape=(1,), dtype="quint8"), "quantized"),
        (TensorMeta(shape=(1,), dtype="no_such"), "dtype no_such"),
        (TensorMeta(shape=(1, 2), dtype="float32", strides=(1,)), "do not fit"),
        (TensorMeta(shape=(-1,), dtype="float32"), "negative"),
        (TensorMeta(shape=(2,), dtype="float32", strides=(-1,)), "negative"),
        (TensorMeta(shape=(1,) * 65, dtype="float32"), "65 dimensions"),
    ],
)
def test_impossible_metadata_is_a_reason(meta: TensorMeta, reason: str) -> None:
    with pytest.raises(NotReplayable, match=reason):
        tensors.allocate(meta, device=CPU)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("ScalarType", "torch.bfloat16", torch.bfloat16),
        ("Layout", "torch.strided", torch.strided),
        ("MemoryFormat", "torch.channels_last", torch.channels_last),
        ("Device", "cuda:3", CPU),
        ("Scalar", "inf", math.inf),
        ("Scalar", "-inf", -math.inf),
        ("Scalar", "1+2j", 1 + 2j),
        ("float", 1, 1.0),
        ("Scalar", True, True),
        ("int[]", (1, 2), [1, 2]),
        ("float[]", ("inf", 2.0), [math.inf, 2.0]),
        ("int", None, None),
        ("str", "none", "none"),
    ],
)
def test_scalars_become_values_of_torch(kind: str, value: Value, expected: object) -> None:
    found = tensors.scalar_value(ReplayArg(name="x", type=kind, value=value), device=CPU)
    assert found == expected
    assert type(found) is type(expected)


def test_nan_stays_nan() -> None:
    assert math.isnan(tensors.scalar_value(ReplayArg(name="x", type="Scalar", value="nan"), device=CPU))


@pytest.mark.parametrize(
    ("kind", "value"), [("ScalarType", "torch.load"), ("Layout", "os.system"), ("Scalar", "seven")]
)
def test_names_outside_the_table_are_refused(kind: str, value: str) -> None:
    with pytest.raises(NotReplayable):
        tensors.scalar_value(ReplayArg(name="x", type=kind, value=value), device=CPU)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_are_no_views_so_that_detach_in_place_works(device: str) -> None:
    meta = TensorMeta(shape=(4, 3), dtype="bfloat16", strides=(1, 4), storage_offset=5)
    made = tensors.allocate(meta, device=torch.device(device))
    assert (made.shape, made.stride(), made.storage_offset()) == ((4, 3), (1, 4), 5)
    assert not made._is_view()
    made.detach_()


def test_a_view_beyond_the_recorded_shape_of_its_base_gets_a_storage_that_holds_it() -> None:
    base = ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(5, 33), dtype="float32"),))
    ints = (("size", (5, 33)), ("stride", (512, 1)), ("storage_offset", 512))
    args = (base, *(ReplayArg(name=n, type="int", value=v) for n, v in ints))
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    op = ReplayOp(id="0" * 12, name="aten::as_strided", count=1, recorded=recorded, args=args)
    made = tensors.arguments(op, device=torch.device("cpu"))
    view = torch.as_strided(made["self"], made["size"], made["stride"], made["storage_offset"])
    assert view.shape == (5, 33)
    assert budget.need_of(op).inputs == 4 * (512 + 4 * 512 + 33)
