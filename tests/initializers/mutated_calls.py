"""Calls of every op that has an initializer or a counter of work, with arguments as no sound trace has them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.rules.row_numbers import ROLES
from opreplay.replay.ops.register import parse_schema
from opreplay.replay.ops.table import find, role_of
from opreplay.replay.resolve.schema import specs_of

SHAPES = (
    (), (0,), (1,), (2,), (7,), (8,), (4, 16), (16, 4), (0, 4), (4, 0), (2, 2), (3, 4, 4), (2, 3, 4), (3, 0, 5),
    (4, 16, 8, 8), (2, 0, 3, 4), (2, 8, 2, 16), (2, 4, 8, 8, 8), (2, 0, 1, 3, 1),
)  # fmt: skip
DTYPES = (
    "bfloat16", "float32", "float16", "int64", "int64", "int32", "bool", "int8", "uint8", "int16", "float64",
    "float8_e4m3fn", "complex64",
)  # fmt: skip
VALUES = (
    None, 0, 1, -1, 2, 3, 8, 16, 100, -100, 1 << 40, -(1 << 62), 1.5, 0.0, -2.5, float("nan"), float("inf"), True,
    False, (), (0,), (2, 2), (8,), (1, 2, 3, 4), (-1, -5), (1 << 40,), (True, False), "", "BSH", "TND", "BNSD", "a",
    ("a",), (None, 2), (1.5, float("nan")),
)  # fmt: skip


class Arguments(dict[str, Any]):
    """Arguments of a call that notes the names that were asked for."""

    def __init__(self, names: set[str], values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._names = names

    def get(self, key: str, default: Any = None) -> Any:
        self._names.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._names.add(key)
        return super().__getitem__(key)


def kinds_of(op: str) -> dict[str, str]:
    """Argument → its type in some schema of the op; "" where no schema tells."""
    kinds = dict.fromkeys(ROLES.get(role_of(op), ()), "")
    row = find(op)
    for version in row.references if row is not None else ():
        kinds.update({str(arg.name): str(arg.type) for arg in parse_schema(version.schema).arguments})
    for spec in specs_of(op):
        kinds.update({arg.name: arg.kind for arg in spec.args})
    return kinds


def calls(op: str, count: int, *, seed: int = 0) -> Iterator[InitContext]:
    """`count` calls of an op; names that its code asks for are arguments of those that follow."""
    draw = random.Random(f"{op} {seed}")
    kinds, names = kinds_of(op), set[str]()
    for number in range(count):
        names |= set(kinds)
        same = draw.choice(SHAPES)
        args = Arguments(names, {})
        for name in sorted(names):
            if draw.random() > 0.05:
                args[name] = _argument(draw, kinds.get(name, ""), same)
        yield InitContext(op=op, args=args, generator=torch.Generator().manual_seed(number), seed=number)


def _argument(draw: random.Random, kind: str, same: tuple[int, ...]) -> Any:
    unsound = draw.random() < 0.1
    tensor = "Tensor" in kind if kind and not unsound else draw.random() < 0.6
    if not tensor:
        return draw.choice(VALUES)
    optional = "?" in kind or "Optional" in kind or unsound
    if optional and draw.random() < 0.3:
        return None
    if "[]" in kind or "List" in kind or (unsound and draw.random() < 0.3):
        return [None if draw.random() < 0.1 else _tensor(draw, same) for _ in range(draw.randrange(3))]
    return _tensor(draw, same)


def _tensor(draw: random.Random, same: tuple[int, ...]) -> torch.Tensor:
    shape = same if draw.random() < 0.4 else draw.choice(SHAPES)
    tensor = torch.zeros(shape, dtype=getattr(torch, draw.choice(DTYPES)))
    return torch.zeros((), dtype=tensor.dtype).expand(shape) if draw.random() < 0.1 else tensor


def scramble(context: InitContext, draw: random.Random) -> None:
    """Put values into the tensors that no initializer would."""
    for _, tensor in context.tensors():
        size = draw.choice((3, 3, 100, 1 << 40))
        values = torch.randint(-size, size, tensor.shape, generator=context.generator)
        if 0 not in tensor.stride():
            tensor.copy_(values)
