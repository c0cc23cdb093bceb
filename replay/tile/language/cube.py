# pyright: strict
"""Matrix products on the cube core, and data movement to and from its memories."""

from __future__ import annotations

from typing import Any

from opreplay.replay.tile.language.instructions import CUBE, FIXP, MTE1
from opreplay.replay.tile.language.places import (
    DTYPE_BYTES,
    FLOAT8,
    FRACTAL,
    L0C,
    L1,
    capacity,
    check_float8,
    fail,
    kib,
    padded_bytes,
    up,
)
from opreplay.replay.tile.language.recording import Core, NeedsCube
from opreplay.replay.tile.language.tiles import Tile
from opreplay.replay.tile.language.vector import core

SUMS = dict.fromkeys(("float16", "bfloat16", "float32", *sorted(FLOAT8)), "float32") | {"int8": "int32"}
"""Dtype of the factors → dtype in which products are accumulated."""


def matmul(a: Tile, b: Tile, acc: Tile | None = None, *, bias: Tile | None = None) -> Tile:
    """Return a @ b on the cube core, added to `acc` if given: [m, k] by [k, n] in L1 to [m, n] in L0C.

    Floats accumulate in float32, int8 in int32. L0A and L0B are implicit. Pieces of k that fill half of each memory are
    copied there, so loading and computing overlap. `bias` is a row in L1 that is added to the first product of a sum.
    """
    on = core()
    if on.kind == "vector":
        raise NeedsCube
    _check(on, a, b, acc, bias)
    (m, k), n = a.shape, b.shape[1]
    place = on.here()
    if acc is None:
        size = padded_bytes((m, n), SUMS[a.dtype], L0C)
        slots = 2 if 2 * size <= capacity(L0C, on.device) else 1
        total = Tile(on, L0C, on.unit, (m, n), SUMS[a.dtype], on.next_slot(place, slots))
        total.line, total.generation = on.line(place), total.buffer[1]
        on.reserve(place, L0C, min(slots, on.uses(place)), size)
    else:
        total = acc
    if m and n and k:
        _pieces(on, a, b, total, bias)
    if on.values:
        product = _product(a, b)
        start = acc.data if acc is not None else 0 if bias is None else bias.data.reshape(1, -1).to(product.dtype)
        total.data = product + start
    return total


def _product(a: Tile, b: Tile) -> Any:
    if a.dtype == "int8":
        return a.data.int() @ b.data.int()
    return a.data.float() @ b.data.float()


def _check(on: Core, a: Any, b: Any, acc: Any, bias: Tile | None) -> None:
    _check_operand(on, a, "a")
    _check_operand(on, b, "b")
    if bias is not None:
        _check_operand(on, bias, "bias")
    if on.unit != "cube":
        raise fail(
            "path",
            "a matrix product runs only on the cube core",
            hint="Put products outside `for half in tile.vectors`.",
        )
    if a.dtype != b.dtype or a.dtype not in SUMS:
        raise fail(
            "dtype",
            f"the cube core cannot multiply {a.dtype} and {b.dtype}",
            hint=f"Both must be of {', '.join(SUMS)}.",
        )
    check_float8(on.device, a.dtype)
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise fail("shape", f"shapes {list(a.shape)} and {list(b.shape)} cannot be multiplied")
    if acc is not None:
        _check_sum(on, acc, (a.shape[0], b.shape[1]))


def _check_sum(on: Core, acc: Any, shape: tuple[int, int]) -> None:
    if not isinstance(acc, Tile) or acc.place != L0C:
        raise fail(
            "path",
            "acc of a product must be a tile in L0C",
            hint="Pass acc=None first, then the previous result of matmul.",
        )
    if acc.shape != shape:
        raise fail("shape", f"a product of shape {list(shape)} cannot be added to acc of shape {list(acc.shape)}")
    on.check_fresh(acc)


def _check_operand(on: Core, value: Any, name: str) -> None:
    if not isinstance(value, Tile):
        raise fail(
            "path",
            f"{name} of a product must be a tile, not {type(value).__name__}",
            hint="Use tile.load(..., to=tile.L1).",
        )
    if value.place != L1:
        raise fail(
            "path",
            f"{name} of a product is in {value.place}, but operands must be in L1",
            hint="Use tile.load(..., to=tile.L1); pass results of vector cores through tile.scratch.",
        )
    on.check_fresh(value)
    if on.values and value.defined is not None and not bool(value.defined.all()):
        raise fail("mask", f"{name} of a product holds padding without data", hint="Load it with fill=0.")


def _pieces(on: Core, a: Tile, b: Tile, total: Tile, bias: Tile | None) -> None:
    """For each piece of k, emit the copies to L0A and L0B and the matrix product."""
    device, size = on.device, DTYPE_BYTES[a.dtype]
    (m, k), n = a.shape, b.shape[1]
    rows, columns = up(m, FRACTAL), up(n, FRACTAL)
    step = min(_deepest(on, "L0A", rows * size), _deepest(on, "L0B", columns * size), up(k, FRACTAL))
    macs = device.macs_per_cycle.get(a.dtype, device.macs_per_cycle["float16"])
    place_a, place_b, place_c = on.here("L0A"), on.here("L0B"), on.here("cube")
    pipes = device.pipes
    for at in range(0, k, step):
        depth = up(min(step, k - at), 32 // size)
        slot_a, slot_b = on.next_slot(place_a, 2), on.next_slot(place_b, 2)
        to_a = pipes.l0_start + rows * depth * size / pipes.l1_to_l0a
        to_b = pipes.l0_start + columns * depth * size / pipes.l1_to_l0b
        on.emit("to L0A", MTE1, to_a, place_a, reads=[a.buffer], writes=[slot_a])
        on.emit("to L0B", MTE1, to_b, place_b, reads=[b.buffer], writes=[slot_b])
        reads = [slot_a, slot_b, *([bias.buffer] if bias is not None and at == 0 else [])]
        cycles = pipes.cube_start + rows * columns * depth / macs
        on.emit("product", CUBE, cycles, place_c, reads=[*reads, total.buffer], writes=[total.buffer])
    _note(on, "L0A", rows * min(step, up(k, FRACTAL)) * size, k > step)
    _note(on, "L0B", columns * min(step, up(k, FRACTAL)) * size, k > step)


def _deepest(on: Core, place: Any, bytes_each: int) -> int:
    """Return the largest multiple of 16 for k that fits into half of L0A or L0B. A k of 16 may take the whole
    memory.
    """
    there = capacity(place, on.device)
    step = there // 2 // bytes_each // FRACTAL * FRACTAL
    if step:
        return step
    if there // bytes_each >= FRACTAL:
        return FRACTAL
    raise fail(
        place,
        f"{place}: {kib(bytes_each * FRACTAL)} needed, {kib(there)} available",
        hint="A matrix product needs a k of at least 16: choose a smaller m or n.",
    )


def _note(on: Core, place: Any, size: int, twice: bool) -> None:
    used = min(capacity(place, on.device), size * (2 if twice else 1))
    on.recording.peaks[place] = max(used, on.recording.peaks.get(place, 0))


def to_l1(t: Tile, dtype: Any, *, relu: bool = False) -> Tile:
    """Move a product from L0C to L1 as an operand, and convert it on the way. Instruction TMOV on pipe FIXP."""
    on = core()
    name = str(dtype).removeprefix("torch.")
    if t.place != L0C:
        raise fail("path", f"to_l1 takes results of products, not a tile in {t.place}")
    if name not in ("float16", "bfloat16", "int8") or (t.dtype == "int32" and name == "bfloat16"):
        raise fail("dtype", f"to_l1 cannot convert {t.dtype} to {name}")
    on.check_fresh(t)
    place = on.here()
    buffer = on.next_slot(place, 2)
    size = padded_bytes(t.shape, name, L1)
    on.reserve(place, L1, min(2, on.uses(place)), size)
    tile = Tile(on, L1, on.unit, t.shape, name, buffer)
    tile.line, tile.generation = on.line(place), buffer[1]
    on.emit("to L1", FIXP, size / on.device.pipes.l0c_to_l1, place, reads=[t.buffer], writes=[buffer])
    if on.values:
        import torch

        tile.data = (t.data.clamp_min(0) if relu else t.data).to(getattr(torch, name))
    return tile
