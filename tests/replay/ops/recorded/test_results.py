"""The bytes that aten ops write, compared with the results of torch for random arguments."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from opreplay.replay.ops.recorded.results import ADAPTIVE_POOLS, HALVED, REDUCING, RULES, result_bytes
from opreplay.replay.ops.recorded.sizes import work_of
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.model import OpSignature

SPELLED = {
    torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half", torch.float64: "double",
    torch.int64: "long int", torch.int32: "int", torch.int8: "signed char", torch.uint8: "unsigned char",
    torch.bool: "bool", torch.complex64: "c10::complex<float>",
}  # fmt: skip
DTYPES = (*[torch.float32] * 2, *SPELLED)
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((4, 6),), ((4, 1), (1, 6), (4, 6)), ((6,), (4, 6)), ((2, 4, 6),), ((2, 4, 6, 6),), ((4, 6), (), (4, 6), ()),
    ((), (4, 6)), ((),),
)  # fmt: skip


class CannotMake(Exception):
    """For this parameter of a schema there are no arguments here."""


def argument(parameter: Any, choose: random.Random, tensors: Iterator[torch.Tensor], dtype: torch.dtype) -> Any:
    kind, name = str(parameter.type), parameter.name
    if kind.startswith("Optional["):
        kind = kind[9:-1]
        if choose.random() < 0.5:
            return None
    if kind == "Tensor":
        return next(tensors)
    if parameter.has_default_value() and choose.random() < 0.4:
        return parameter.default_value
    choices: dict[str, tuple[Any, ...]] = {
        "bool": (True, False),
        "number": (2, 0.5, True),
        "float": (0.5,),
        "List[int]": ([0], [-1], [0, 1], [], [3, 3], [3]),
        "int": (0, 1, -1),
    }
    if name == "dtype" and kind == "int":
        return choose.choice((torch.float32, torch.float64, torch.int64))
    if name == "input_dtype":
        return dtype
    if name == "reduction":
        return choose.choice((0, 1, 2))
    if kind in choices:
        return choose.choice(choices[kind])
    if parameter.has_default_value():
        return parameter.default_value
    raise CannotMake


def recorded(name: str, arguments: list[Any]) -> OpSignature:
    """Return the signature that a profile would have for a call."""
    dims, types, concrete = [], [], []
    for one in arguments:
        is_tensor = isinstance(one, torch.Tensor)
        dims.append(tuple(one.shape) if is_tensor else ())
        if is_tensor:
            types.append(SPELLED[one.dtype])
        else:
            types.append("" if one is None else "ScalarList" if isinstance(one, list) else "Scalar")
        if isinstance(one, torch.dtype):
            one = SCALAR_TYPE_CODES.index(str(one).removeprefix("torch."))
        concrete.append("" if is_tensor or one is None else str(one))
    return OpSignature(name=f"aten::{name}", dims=tuple(dims), types=tuple(types), concrete=tuple(concrete))


def written(results: Any) -> int:
    tensors = results if isinstance(results, (tuple, list)) else (results,)
    return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))


def random_calls(name: str, count: int) -> Iterator[tuple[OpSignature, int]]:
    """Yield (signature, bytes that the call writes to other tensors than its buffers) of calls that torch accepts."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        function = getattr(packet, overload)
        parameters = function._schema.arguments
        if not any("Tensor" in str(one.type) for one in parameters):
            continue
        choose = random.Random(str(function._schema))
        for _ in range(count):
            shapes = choose.choice(SHAPES)
            dtypes = [choose.choice(DTYPES)] * 9 if choose.random() < 0.6 else choose.choices(DTYPES, k=9)
            made = (torch.ones(shapes[min(at, len(shapes) - 1)], dtype=dtype) for at, dtype in enumerate(dtypes))
            buffers = [torch.empty(0, dtype=choose.choice(DTYPES)) for one in parameters if one.is_out]
            free = iter(buffers)
            try:
                values = [next(free) if one.is_out else argument(one, choose, made, dtypes[0]) for one in parameters]
                before = recorded(name, values)
                result = function(
                    *[value for value, one in zip(values, parameters, strict=True) if not one.kwarg_only],
                    **{one.name: value for value, one in zip(values, parameters, strict=True) if one.kwarg_only},
                )
            except CannotMake:
                break
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                continue
            yield (recorded(name, values), 0) if buffers else (before, written(result))


def names_of_ops() -> list[str]:
    in_place = [f"{name}_" for name in RULES]
    names = {*RULES, *in_place, *REDUCING, *HALVED, *ADAPTIVE_POOLS}
    # Random arguments of these make some versions of torch divide by zero.
    unsafe = ("quantize", "smooth_l1_loss_backward", "huber_loss_backward", "mse_loss_backward")
    return sorted(name for name in names if hasattr(torch.ops.aten, name) and not name.startswith(unsafe))


@pytest.mark.slow
def test_what_random_calls_write_is_right_or_unknown() -> None:
    wrong: list[tuple[OpSignature, int, float]] = []
    known = dict.fromkeys(names_of_ops(), 0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for name in known:
            for signature, expected in random_calls(name, 30):
                found = result_bytes(signature)
                known[name] += found == expected
                wrong += [(signature, expected, found)] if found not in (None, expected) else []
    assert wrong == []
    assert sum(count > 0 for count in known.values()) > 250


X, ROW = torch.ones(4, 6, 5), torch.ones(6)
IMAGE, MASK = torch.ones(2, 6, 8, 8), [True, False, True]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("native_layer_norm", [X, [6, 5], torch.ones(6, 5), None, 1e-5]),
        ("layer_norm", [X, [5], torch.ones(5), torch.ones(5), 1e-5, True]),
        ("native_layer_norm_backward", [X, X, [5], *[torch.ones(4, 6, 1)] * 2, *[torch.ones(5)] * 2, MASK]),
        ("native_group_norm", [IMAGE, ROW, ROW, 2, 6, 64, 3, 1e-5]),
        ("native_group_norm_backward", [IMAGE, IMAGE, *[torch.ones(2, 3)] * 2, ROW, 2, 6, 64, 3, MASK]),
        ("native_batch_norm", [IMAGE, ROW, ROW, ROW, ROW, False, 0.1, 1e-5]),
        ("native_batch_norm_backward", [IMAGE, IMAGE, *[ROW] * 5, True, 1e-5, MASK]),
        ("mse_loss_backward", [X, X, X, 1]),
        ("huber_loss_backward", [X, X, X, 1, 0.5]),
        ("_adaptive_avg_pool2d", [IMAGE, [3, 2]]),
        ("adaptive_max_pool2d", [IMAGE, [3, 2]]),
        ("glu", [X, 1]),
        ("to", [X, torch.float16, False, False, None]),
        ("_to_copy", [X, torch.float16, None, None, None, False, None]),
    ],
)
def test_a_call_writes_as_much_as_torch(name: str, arguments: list[Any]) -> None:
    packet = getattr(torch.ops.aten, name)
    overload = packet.dtype if name == "to" else packet.default
    names = [one.name for one in overload._schema.arguments if one.kwarg_only]
    split = len(arguments) - len(names)
    result = overload(*arguments[:split], **dict(zip(names, arguments[split:], strict=True)))
    assert result_bytes(recorded(name, arguments)) == written(result)


def test_a_training_batch_norm_also_writes_its_statistics() -> None:
    training = recorded("native_batch_norm", [IMAGE, ROW, ROW, ROW, ROW, True, 0.1, 1e-5])
    assert result_bytes(training) == written(IMAGE) + 4 * written(ROW)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sigmoid_backward", [X, X, X]),
        ("sum", [X, [0], False, None, X]),
        ("max", [X, 0, False, X, X]),
        ("glu", [X, 1, X]),
        ("_adaptive_avg_pool2d", [IMAGE, [3, 2], IMAGE]),
    ],
)
def test_a_buffer_for_the_result_is_not_counted_twice(name: str, arguments: list[Any]) -> None:
    assert result_bytes(recorded(name, arguments)) == 0


@pytest.mark.parametrize("name", ["sum", "cumsum", "_to_copy", "div", "native_layer_norm"])
def test_a_result_is_unknown_without_the_arguments_that_determine_it(name: str) -> None:
    whole = recorded(name, [torch.ones(4, 6, dtype=torch.int64), None, None])
    assert result_bytes(OpSignature(name=whole.name, dims=whole.dims, types=whole.types)) is None


def test_an_op_in_no_table_is_unknown() -> None:
    assert result_bytes(recorded("as_strided_", [X, [2], [1]])) is None
    assert result_bytes(recorded("transpose", [X, 0, 1])) is None


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("cumsum", ((), (300,), (), ()), ("", "long int", "Scalar", "")),
        ("eq", ((), (), (), ()), ("Scalar", "Scalar", "int", "Scalar")),
        ("sum", ((), (300,), ()), ("", "float", "")),
        ("add", ((4,), (4,), (), (0,)), ("float", "float", "Scalar", "float")),
    ],
)
def test_arguments_in_another_order_and_empty_buffers_are_unknown(
    name: str, dims: tuple[Any, ...], types: tuple[str, ...]
) -> None:
    """Profilers of torch 1.8 recorded some arguments in another order; an empty buffer gets the result's size."""
    assert result_bytes(OpSignature(name=f"aten::{name}", dims=dims, types=types, concrete=("",) * len(dims))) is None


@pytest.mark.parametrize("name", ["cumsum", "sum", "_softmax"])
def test_the_reason_of_an_unknown_result_is_what_the_profile_lacks(name: str) -> None:
    work = work_of(OpSignature(name=f"aten::{name}", dims=((4, 6),), types=("long int",)))
    assert (work.bytes, work.why) == (None, "arguments that decide the size of its result are not recorded")
