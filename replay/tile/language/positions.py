# pyright: strict
"""Positions of blocks as expressions over loop counters, and the conditions on positions that a program evaluated.

Python's own `if`, `min` and `range` work on positions: each comparison is recorded with its outcome. If another
iteration or block has the same outcomes, it does the same work and need not be run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

Env = Mapping["Atom", Any]
"""Loop counters → values: integers for one iteration, or arrays for many iterations at once."""
NEVER = 1 << 60
"""Number of iterations that represents "no limit", for a comparison that holds for all following iterations."""


class NotKnown(Exception):
    """Raised if the value of an expression cannot be determined from the given loop counters."""


class Atom:
    """A variable in expressions: the iteration number of a loop, or a number of skipped repetitions."""

    __slots__ = ()

    def at(self, env: Env) -> Any:
        """Return the value of the variable."""
        if self not in env:
            raise NotKnown
        return env[self]

    def free(self) -> frozenset[Atom]:
        """Return the variables that the atom depends on."""
        return frozenset((self,))


class Computed(Atom):
    """The result of a non-linear operator."""

    __slots__ = ("first", "operate", "second")

    def __init__(self, operate: Callable[[Any, Any], Any], first: Expr, second: Expr) -> None:
        self.operate, self.first, self.second = operate, first, second

    def at(self, env: Env) -> Any:
        return self.operate(self.first.at(env), self.second.at(env))

    def free(self) -> frozenset[Atom]:
        return self.first.free() | self.second.free()


class Expr(msgspec.Struct, frozen=True):
    """A linear combination of atoms."""

    parts: tuple[tuple[Atom, Any], ...]
    constant: Any = 0

    def at(self, env: Env) -> Any:
        """Return the value of the expression."""
        total = self.constant
        for atom, times in self.parts:
            total = total + atom.at(env) * times
        return total

    def plus(self, other: Expr, times: Any = 1) -> Expr:
        """Add a multiple of another expression."""
        parts = dict(self.parts)
        for atom, factor in other.parts:
            parts[atom] = parts.get(atom, 0) + factor * times
        return Expr(
            tuple((atom, factor) for atom, factor in parts.items() if factor), self.constant + other.constant * times
        )

    def scaled(self, times: Any) -> Expr:
        """Return a multiple of the expression."""
        return ZERO.plus(self, times)

    def free(self) -> frozenset[Atom]:
        """Return the variables that the expression depends on."""
        return frozenset[Atom]().union(*(atom.free() for atom, _ in self.parts))


ZERO, ONE = Expr((), 0), Expr((), 1)


def expr_of(value: Any) -> Expr:
    """Return the expression of a position or a number."""
    return value.expr if isinstance(value, Position) else Expr((), value)


def plain(value: Any) -> Any:
    """Return the plain number without recording a condition, for uses that do not affect which instructions run."""
    return value.value if isinstance(value, Position) else value


def combined(operate: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """Return the result of a non-linear operator as a position. If both operands are plain numbers, return a number."""
    value = operate(plain(first), plain(second))
    notes = [one.notes for one in (first, second) if isinstance(one, Position)]
    if not notes:
        return value
    return Position(value, Expr(((Computed(operate, expr_of(first), expr_of(second)), 1),)), notes[0])


def whole_part(first: Any, second: Any) -> Any:
    """Return the quotient, rounded down."""
    return first // second


def remainder(first: Any, second: Any) -> Any:
    """Return the remainder of a division."""
    return first % second


def _divided(first: Any, second: Any) -> Any:
    return first / second


def _product(first: Any, second: Any) -> Any:
    return first * second


class Guard:
    """A condition that was true when a program was run, as a function of the loop counters."""

    __slots__ = ()

    def holds(self, env: dict[Atom, Any]) -> Any:
        """Return whether the condition is true for these loop counters, as one boolean or an array."""
        raise NotImplementedError

    def free(self) -> frozenset[Atom]:
        """Return the variables that the condition depends on."""
        raise NotImplementedError

    def lasts(self, variable: Atom, first: Any, env: dict[Atom, Any]) -> Any:
        """Return how many consecutive values of `variable`, from `first`, satisfy the condition. Raises NotKnown."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Compared(Guard):
    """A comparison of an expression with 0."""

    expr: Expr
    how: str
    """Comparison operator: "<", "<=" or "=="."""
    outcome: bool

    def holds(self, env: dict[Atom, Any]) -> Any:
        value = self.expr.at(env)
        truth = value < 0 if self.how == "<" else value <= 0 if self.how == "<=" else value == 0
        return truth == self.outcome

    def free(self) -> frozenset[Atom]:
        return self.expr.free()

    def lasts(self, variable: Atom, first: Any, env: dict[Atom, Any]) -> Any:
        import numpy as np

        slope = dict(self.expr.parts).get(variable, 0)
        if slope != int(slope) or any(variable in atom.free() for atom, _ in self.expr.parts if atom is not variable):
            raise NotKnown
        value = self.expr.at({**env, variable: first})
        slope = int(slope)
        here = self.holds({**env, variable: first})
        if slope == 0:
            more: Any = NEVER
        elif self.how == "==":
            # Steps until the value is 0, where it comes by that.
            steps = -value // slope
            more = 1 if self.outcome else np.where((steps > 0) & (value + steps * slope == 0), steps, NEVER)
        else:
            low = self.outcome  # it has to stay below 0 (or at it)
            if (slope < 0) == low:
                more = NEVER
            else:
                room = -value if low else value
                if (self.how == "<") == low:
                    room = room - 1
                more = room // abs(slope) + 1
        return np.where(here, more, 0)


class Notes:
    """The conditions on positions that were recorded while a core was run."""

    __slots__ = ("guards",)

    def __init__(self) -> None:
        self.guards: list[Guard] = []

    def note(self, guard: Guard) -> None:
        """Record a condition that was true."""
        if guard.free():
            self.guards.append(guard)


class Position:
    """An integer that depends on the current loop iterations.

    Comparisons and conversions to a plain number are recorded.
    """

    __slots__ = ("expr", "notes", "value")

    def __init__(self, value: Any, expr: Expr, notes: Notes) -> None:
        self.value, self.expr, self.notes = value, expr, notes

    def _linear(self, other: Any, times: int) -> Any:
        if not isinstance(other, int | float | Position):
            return NotImplemented
        return _position(self.value + plain(other) * times, self.expr.plus(expr_of(other), times), self.notes)

    def __add__(self, other: Any) -> Any:
        return self._linear(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._linear(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self).__add__(other)

    def __neg__(self) -> Any:
        return Position(-self.value, self.expr.scaled(-1), self.notes)

    def __pos__(self) -> Position:
        return self

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int | float):
            return _position(self.value * other, self.expr.scaled(other), self.notes)
        return combined(_product, self, other) if isinstance(other, Position) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return combined(whole_part, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return combined(whole_part, other, self)

    def __mod__(self, other: Any) -> Any:
        return combined(remainder, self, other)

    def __rmod__(self, other: Any) -> Any:
        return combined(remainder, other, self)

    def __truediv__(self, other: Any) -> Any:
        return combined(_divided, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return combined(_divided, other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def _compared(self, other: Any, how: str) -> bool:
        difference = self.value - plain(other)
        outcome = difference < 0 if how == "<" else difference <= 0 if how == "<=" else difference == 0
        self.notes.note(Compared(self.expr.plus(expr_of(other), -1), how, bool(outcome)))
        return bool(outcome)

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, "<")

    def __le__(self, other: Any) -> bool:
        return self._compared(other, "<=")

    def __gt__(self, other: Any) -> bool:
        return not self._compared(other, "<=")

    def __ge__(self, other: Any) -> bool:
        return not self._compared(other, "<")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float | Position) and self._compared(other, "==")

    def __bool__(self) -> bool:
        return not self._compared(0, "==")

    def seen(self) -> Any:
        """Return the plain number, and record that the position has this value."""
        self._compared(self.value, "==")
        return self.value

    def __index__(self) -> int:
        return operator.index(self.seen())

    def __int__(self) -> int:
        return int(self.seen())

    def __float__(self) -> float:
        return float(self.seen())

    def __hash__(self) -> int:
        return hash(self.seen())

    def __repr__(self) -> str:
        return repr(self.seen())

    def __format__(self, spec: str) -> str:
        return format(self.seen(), spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.seen(), name)


def _position(value: Any, expr: Expr, notes: Notes) -> Any:
    """Return a position, or a plain number if it depends on no loop."""
    return Position(value, expr, notes) if expr.parts else value


class Explicit(msgspec.Struct):
    """A loop iteration that was run, not skipped."""

    number: Expr
    guards: tuple[Guard, ...]


class Skipped(msgspec.Struct):
    """Skipped iterations of a loop: `times` periods starting at iteration `first`, as many as the guards allow."""

    first: Expr
    guards: tuple[tuple[Guard, ...], ...]
    """Guards of each iteration of the period."""
    times: Atom
    tail: int
    """Number of iterations at the end of the loop that are run, not skipped."""
    half: bool
    """Whether only half of the possible iterations were skipped. An iteration in the middle is then run and
    compared.
    """


def count_true_periods(
    guards: Iterable[tuple[Guard, ...]], variable: Atom, first: Any, env: dict[Atom, Any], most: Any
) -> Any:
    """Return how many consecutive periods from `first` satisfy the guards, at most `most`. Raises NotKnown."""
    import numpy as np

    listed = list(guards)
    period = len(listed)
    out = most
    for at, each in enumerate(listed):
        for guard in each:
            if variable in guard.free():
                count = (
                    guard.lasts(variable, first + at, env)
                    if period == 1
                    else _periods(guard, variable, first + at, env, period)
                )
            else:
                count = np.where(guard.holds(env), NEVER, 0)
            out = np.minimum(out, count)
    return out


def _periods(guard: Guard, variable: Atom, first: Any, env: dict[Atom, Any], period: int) -> Any:
    # The guard need hold in each period-th iteration only; where it does in all between, none is missed.
    return (guard.lasts(variable, first, env) + period - 1) // period


@dataclass(slots=True)
class Trail(Guard):
    """The iterations of a loop in order, run or skipped, with the conditions that were true in each."""

    variable: Atom
    count: Expr
    parts: list[Explicit | Skipped] = field(default_factory=list[Explicit | Skipped])
    end: Expr = ZERO
    """Number of the iteration after the last one."""
    left_early: bool = False
    """Whether the program broke out of the loop."""
    sampled: bool = False
    """Whether the skipped iterations may do different work, because only samples of them were run."""

    def holds(self, env: dict[Atom, Any]) -> Any:
        """Return whether all conditions are true, and store the counts of skipped iterations in `env`."""
        if self.sampled:
            raise NotKnown
        truth: Any = True
        for part in self.parts:
            if isinstance(part, Explicit):
                if part.guards:
                    inner = {**env, self.variable: part.number.at(env)}
                    for guard in part.guards:
                        truth = truth & guard.holds(inner)
                    inner.pop(self.variable)
                    env.update(inner)
            else:
                first = part.first.at(env)
                room = (self.count.at(env) - part.tail - first) // len(part.guards)
                times = count_true_periods(part.guards, self.variable, first, env, room)
                truth = truth & (times >= 0)
                env[part.times] = times // 2 if part.half else times
        behind, count = self.end.at(env), self.count.at(env)
        return truth & (behind <= count if self.left_early else behind == count)

    def free(self) -> frozenset[Atom]:
        inside: set[Atom] = {self.variable}
        found = set(self.count.free())
        for part in self.parts:
            if isinstance(part, Explicit):
                for guard in part.guards:
                    found |= guard.free()
            else:
                inside.add(part.times)
                for each in part.guards:
                    for guard in each:
                        found |= guard.free()
        return frozenset(found - inside)

    def lasts(self, variable: Atom, first: Any, env: dict[Atom, Any]) -> Any:
        raise NotKnown
