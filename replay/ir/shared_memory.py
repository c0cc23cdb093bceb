# pyright: strict
"""Finds groups of tensors of one call that share memory.

A group is kept only if the call stays valid with it. This module manages the numbers in `TensorMeta.storage`; `tensors`
allocates memory, and `recorded` reads the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from opreplay.replay.ir.model import Assumption, ReplayArg
from opreplay.replay.ir.sizes import extent, itemsize
from opreplay.traces.model import TensorMeta

MIXED = "given separate memory, because it shared bytes with a tensor of another dtype"
INDEXED = "given separate memory, because its indices must be valid for this argument"
REFUSED = "given separate memory, because this implementation refuses arguments that share memory"
LARGE_BYTES = 1 << 20
"""Minimum size, in bytes, of a tensor that a core's nearest caches no longer hold when it is read a second time."""
_FLOATING = ("float", "bfloat", "complex")


def groups(args: Iterable[ReplayArg]) -> dict[int, list[tuple[str, TensorMeta]]]:
    """Return (argument, tensor) pairs by the number of the memory that they share, in the order of the arguments."""
    members: dict[int, list[tuple[str, TensorMeta]]] = defaultdict(list)
    for arg in args:
        for meta in arg.tensors:
            if meta is not None and meta.storage is not None:
                members[meta.storage].append((arg.name, meta))
    return dict(members)


def normalize_sharing(args: tuple[ReplayArg, ...]) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """Renumber shared memories from 0. Return a note for each tensor that gets its own memory instead.

    A memory that only one tensor uses loses its number. Integers share memory only with tensors of their own dtype,
    because data of another dtype would be out of range when it is read as integers.
    """
    memories = groups(args)
    if not memories:
        return args, ()
    numbers: dict[int, int] = {}
    notes: list[Assumption] = []
    for number, members in memories.items():
        if len(members) < 2:
            continue
        if _is_mixed([meta.dtype for _, meta in members]):
            notes += [Assumption(argument=name, what=MIXED) for name in dict.fromkeys(name for name, _ in members)]
        else:
            numbers[number] = len(numbers)
    return _renumbered(args, lambda meta: None if meta.storage is None else numbers.get(meta.storage)), tuple(notes)


def possibly_same_tensor(args: Iterable[ReplayArg]) -> tuple[str, ...]:
    """Return the names of large arguments that may be one and the same tensor.

    Only for large arguments does it matter whether one tensor or two are read. () if the memory of any argument is
    known, and for calls that write to an argument.
    """
    args = tuple(args)
    if any(arg.mutated for arg in args) or groups(args):
        return ()
    names: dict[tuple[object, ...], dict[str, None]] = defaultdict(dict)
    for arg in args:
        for meta in arg.tensors:
            if meta is not None and reach_bytes(meta) >= LARGE_BYTES:
                names[meta.shape, meta.strides, meta.storage_offset, meta.dtype][arg.name] = None
        if len(arg.tensors) > 1:  # the tensors of a list are parts of something, each given once
            return ()
    return next((tuple(equal) for equal in names.values() if len(equal) > 1), ())


def give_own_memory(
    args: tuple[ReplayArg, ...], why: str, *, integers_only: bool = False
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """Give each argument that shares memory its own memory, and return a note for each.

    With `integers_only`, this is done only for arguments that share memory with integers.
    """
    chosen = {
        number: members
        for number, members in groups(args).items()
        if not integers_only or any(not is_floating(meta.dtype) for _, meta in members)
    }
    if not chosen:
        return args, ()
    names = dict.fromkeys(name for members in chosen.values() for name, _ in members)
    notes = tuple(Assumption(argument=name, what=why) for name in names)
    return _renumbered(args, lambda meta: None if meta.storage in chosen else meta.storage), notes


def is_floating(dtype: str) -> bool:
    """Check whether a torch dtype name is a float or complex type. Bool, integers and packed types are not."""
    return dtype.startswith(_FLOATING)


def reach_bytes(meta: TensorMeta) -> int:
    """Return the bytes from the start of a tensor's memory to its last element; 0 for an empty tensor."""
    return extent(meta) * itemsize(meta.dtype)


def sharing(args: Iterable[ReplayArg]) -> dict[str, tuple[str, ...]]:
    """Map each argument to the arguments that share its memory. If two tensors of its list share memory, the argument
    itself is among them.
    """
    out: dict[str, dict[str, None]] = defaultdict(dict)
    for members in groups(args).values():
        for at, (name, _) in enumerate(members):
            out[name].update(dict.fromkeys(other for i, (other, _) in enumerate(members) if i != at))
    return {name: tuple(others) for name, others in out.items()}


def _is_mixed(dtypes: list[str]) -> bool:
    return len(set(dtypes)) > 1 and not all(is_floating(dtype) for dtype in dtypes)


def _renumbered(args: tuple[ReplayArg, ...], number: Callable[[TensorMeta], int | None]) -> tuple[ReplayArg, ...]:
    renumbered: list[ReplayArg] = []
    for arg in args:
        if any(meta is not None and meta.storage is not None for meta in arg.tensors):
            tensors = tuple(meta and msgspec.structs.replace(meta, storage=number(meta)) for meta in arg.tensors)
            arg = msgspec.structs.replace(arg, tensors=tensors)
        renumbered.append(arg)
    return tuple(renumbered)
