# pyright: strict
"""The arguments of one call by name, in the form that guesses and cost rules need."""

from __future__ import annotations

from typing import Any

from opreplay.replay.ir.model import ReplayArg
from opreplay.traces.model import TensorMeta


class Call(dict[str, ReplayArg]):
    """The known arguments of a call by name: tensors by their metadata, other arguments by value."""

    @property
    def subject(self) -> TensorMeta | None:
        """The main tensor of a torch op, `self` or `input`."""
        return self.tensor("self") or self.tensor("input")

    def tensor(self, name: str) -> TensorMeta | None:
        """Return the tensor argument of this name; None if it is absent, unknown, or a list."""
        arg = self.get(name)
        return arg.tensors[0] if arg is not None and arg.type == "Tensor" and arg.tensors else None

    def shape(self, *names: str) -> tuple[int, ...] | None:
        """Return the shape of the first of these arguments that is a known tensor; None if none is."""
        return next((meta.shape for name in names if (meta := self.tensor(name)) is not None), None)

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """Return the shapes of the tensors in the list argument `name`; empty if the list is unknown."""
        return [meta.shape for meta in self[name].tensors if meta is not None] if name in self else []

    def first_tensor(self) -> TensorMeta | None:
        """Return the first tensor of the call, including those in lists."""
        return next((meta for arg in self.values() for meta in arg.tensors if meta is not None), None)

    def value(self, *names: str) -> Any:
        """Return the value of the first of these arguments that is known; None if none is."""
        for name in names:
            if (arg := self.get(name)) is not None:
                return arg.value
        return None

    def dim(self, rank: int) -> int | None:
        """Return the argument `dim` as an index counted from the front; None if it is unknown or out of range."""
        dim = self.value("dim")
        return dim % rank if isinstance(dim, int) and -rank <= dim < rank else None
