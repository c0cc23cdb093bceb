# pyright: strict
"""Tensors supplied by the user for arguments of chosen ops: parse their names and copy them into the arguments.

This module handles the names (`OP.ARGUMENT`). `safetensors` handles the file format, and `replay.arguments.supplied`
checks the tensors against a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import InitializerError
from opreplay.initializers.supplied.safetensors import SafetensorsFile, StoredTensor
from opreplay.traces.errors import EnvironmentRefused, FormatError

RECORDED = "recorded values"
"""Words by which results describe arguments whose values come from a file."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Argument into which a tensor of the file is copied."""

    key: str
    """Name of the tensor in the file."""
    op: str
    """Id of one op, or an exact op name. A name applies to all ops that have it."""
    argument: str
    index: int | None
    """Index in a list of tensors; None for a single tensor."""

    @property
    def shown(self) -> str:
        """Return the argument's name in the form used in reports."""
        return self.argument if self.index is None else f"{self.argument}[{self.index}]"


class RecordedValues:
    """The tensors of a file, and the arguments to which they are copied."""

    def __init__(self, path: str | Path) -> None:
        """Read names, shapes and dtypes from the file.

        Raises FormatError for an invalid file, for names other than `OP.ARGUMENT`, and for two tensors for the same
        argument. Raises EnvironmentRefused on a big-endian machine.
        """
        if sys.byteorder != "little":
            raise EnvironmentRefused("--set values needs a little-endian machine, because the format is little-endian")
        self._file = SafetensorsFile(path)
        self.path = self._file.path
        self.places = tuple(_place(self.path, key) for key in self._file.tensors)
        if len({(place.op, place.shown) for place in self.places}) != len(self.places):
            raise FormatError(
                f"{self.path} has two tensors for the same argument", hint="0 and 00 name the same element."
            )

    def stored(self, place: Place) -> StoredTensor:
        """Return the shape and dtype of the tensor stored for an argument."""
        return self._file.tensors[place.key]

    def of_op(self, op_id: str, name: str) -> tuple[Place, ...]:
        """Return the arguments of an op with supplied tensors. A tensor for the op's id overrides that for its name."""
        chosen = {place.shown: place for place in self.places if place.op == name}
        chosen.update({place.shown: place for place in self.places if place.op == op_id})
        return tuple(chosen.values())

    def write(
        self, op_id: str, name: str, args: Mapping[str, Any], *, only: Callable[[torch.Tensor], bool] | None = None
    ) -> dict[str, str]:
        """Copy the supplied values of one op into its tensors, and return a description of each filled argument.

        With `only`, only tensors for which it returns True are filled. Raises InitializerError if an argument is
        missing or has another shape.
        """
        said: dict[str, str] = {}
        for place in self.of_op(op_id, name):
            target = _target(place, args)
            stored = self.stored(place)
            if target is None or tuple(target.shape) != stored.shape:
                shape_text = "no tensor" if target is None else f"shape {list(target.shape)}"
                raise InitializerError(
                    f"{self.path.name}: {place.key} has shape {list(stored.shape)}, but the argument has {shape_text}"
                )
            if only is not None and not only(target):
                continue
            fill.assign(target, self._file.tensor(place.key))
            said[place.shown] = f"{RECORDED} of {self.path.name}"
        return said


def _target(place: Place, args: Mapping[str, Any]) -> torch.Tensor | None:
    value = args.get(place.argument)
    if place.index is not None:
        items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
        value = items[place.index] if place.index < len(items) else None
    return value if isinstance(value, torch.Tensor) else None


def _place(path: Path, key: str) -> Place:
    """Parse a tensor name, e.g. "aten::index.indices.0", to op, argument and list index."""
    rest, _, last = key.rpartition(".")
    index = None
    if last.isascii() and last.isdigit() and len(last) <= 4:
        index = int(last)
        rest, _, last = rest.rpartition(".")
    if not rest or not last.isidentifier():
        raise FormatError(
            f"{path}: {key!r} is not the name of an op's argument",
            hint="Name tensors OP.ARGUMENT, e.g. aten::embedding.indices, or OP.ARGUMENT.N for a list; OP is a name "
            "or an id that `opreplay plan` shows.",
        )
    return Place(key=key, op=rest, argument=last, index=index)
