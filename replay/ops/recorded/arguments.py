# pyright: strict
"""Names of a recorded call's arguments, from the published schemas of vendor libraries.

This module does not import torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from opreplay.replay.ops.declared import published
from opreplay.replay.ops.register import canonical_name
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.literals import Literal, is_whole_numbers, parse_literal
from opreplay.traces.model import OpSignature

_RESULTS = ("out", "output", "result", "results")
"""First or last words in the names of arguments that an op only writes."""


class Parameter(NamedTuple):
    """One parameter of a schema."""

    name: str
    is_written: bool

    @property
    def is_result(self) -> bool:
        """Return whether the op only writes the argument."""
        words = self.name.lower().split("_")
        return words[0] in _RESULTS or words[-1] in _RESULTS


class Parameters(NamedTuple):
    """Parameters of one version of an op."""

    all: tuple[Parameter, ...]
    returns: bool
    """Whether the op returns a new tensor."""


@lru_cache(maxsize=4096)
def parameters_of(name: str, count: int) -> Parameters | None:
    """Return the parameters of the newest known version of an op that has `count` arguments, or None if there
    is none.
    """
    if "::" not in name or name.startswith("aten::"):
        return None
    versions = [(since, _parsed(schema)) for since, schema in published(canonical_name(name))]
    fitting = [version for version in versions if len(version[1].all) == count]
    return max(fitting, key=lambda version: version[0])[1] if fitting else None


def _parsed(schema: str) -> Parameters:
    """Parse a schema such as "ns::op(Tensor! x, int y=1) -> Tensor"."""
    arguments, _, returns = schema.partition("(")[2].rpartition(" -> ")
    parts: list[str] = [""]
    depth = 0
    for character in arguments.removesuffix(")"):
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    found: list[Parameter] = []
    for part in filter(None, map(str.strip, parts)):
        if part != "*":
            type_, _, name = part.partition("=")[0].rpartition(" ")
            found.append(Parameter(name=name, is_written="!" in type_))
    return Parameters(all=tuple(found), returns="Tensor" in returns and "!" not in returns)


class Arguments:
    """Arguments of a recorded call, by name if a schema is known, and by position."""

    def __init__(self, signature: OpSignature) -> None:
        self.signature = signature
        self._dims: tuple[Any, ...] = signature.dims or ()
        known = parameters_of(signature.name, len(self._dims))
        self.named = known is not None
        self._place = {} if known is None else {parameter.name: at for at, parameter in enumerate(known.all)}
        self.tensors = [at for at in range(len(self._dims)) if self.dtype_at(at) and self.shape_at(at) is not None]
        """Positions of the tensor arguments, without tensors in lists."""

    def shape_at(self, place: int) -> tuple[int, ...] | None:
        """Return the shape of the argument at a position, or None if it is not a tensor."""
        dims = self._dims[place]
        return dims if is_whole_numbers(dims) and min(dims, default=0) >= 0 else None

    def sizes_at(self, place: int) -> tuple[int, ...]:
        """Return the shape of the argument at a position, or () if it is not a tensor."""
        return self.shape_at(place) or ()

    def dtype_at(self, place: int) -> str:
        """Return the dtype of the argument at a position, or "" if it is not a tensor."""
        types = self.signature.types or ()
        return (torch_dtype_name(types[place]) or "") if place < len(types) and types[place] else ""

    def place(self, *names: str) -> int | None:
        """Return the position of the first of these arguments that holds a tensor."""
        places = (self._place[name] for name in names if name in self._place)
        return next((place for place in places if place in self.tensors and self.shape_at(place)), None)

    def shape(self, *names: str) -> tuple[int, ...] | None:
        """Return the shape of the first of these arguments that holds a tensor."""
        place = self.place(*names)
        return None if place is None else self.shape_at(place)

    def value(self, *names: str) -> Literal:
        """Return the recorded value of the first of these arguments that exists."""
        concrete = self.signature.concrete or ()
        place = next((self._place[name] for name in names if name in self._place), None)
        return parse_literal(concrete[place]) if place is not None and place < len(concrete) else None

    def integer(self, *names: str) -> int | None:
        """Return the recorded value of the first of these arguments that exists if it is an integer, otherwise None."""
        value = self.value(*names)
        return value if isinstance(value, int) and not isinstance(value, bool) else None
