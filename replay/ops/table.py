# pyright: strict
"""Table of everything that opreplay defines for each op.

Each row is an op. A family sets common values of its rows. A family's folder has `families`, or modules of cost rules,
which need no torch. It also has modules `reference_*`, which import torch and compute what the ops do. Nothing is
imported before it is needed. User registrations are not in the table and have priority over it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from os import register_at_fork
from pkgutil import walk_packages
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from opreplay.initializers.base import InitializerError
from opreplay.replay import ops as room
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.calls import arguments_read
from opreplay.replay.ops.op_view import OpView
from opreplay.traces.errors import strict

if TYPE_CHECKING:
    from opreplay.initializers.amounts import Work
    from opreplay.initializers.base import BatchLengths, InitContext

loading = RLock()
"""Lock held while modules are imported and references are declared and registered.

It is needed because threads may request both at once.
"""
register_at_fork(before=loading.acquire, after_in_parent=loading.release, after_in_child=loading.release)
Cost = Callable[[OpView], Iterable[KernelCall]]
"""Function that returns the device kernels of one call. It raises DoesNotFit for arguments that it cannot interpret."""
Counter = Callable[["InitContext", "BatchLengths | None"], "Work | None"]
"""Function that takes (call, batch lengths) and returns the call's work.

It returns None if the call has no argument that determines its work.
"""

COUNTERS: dict[str, str] = {
    "attention_backward lengths": "attention.count_attention",
    "moe_routing chosen": "moe.count_chosen",
    "moe_routing numbered_from_one": "moe.count_chosen",
    "moe_routing summed": "moe.count_chosen",
    "moe_routing groups": "moe.count_groups",
    "moe_routing returned": "moe.count_returned",
    "moe_routing router": "moe.count_scores",
    "moe_routing sorted": "moe.count_sorted",
    "moe_routing stage": "moe.count_sorted",
    "attention_mask": "indices.count_visible",
    "cache_slots": "attention.count_slots",
    "cumulative_lengths": "attention.count_attention",
    "dropout_mask": "indices.count_selected",
    "embedding_bag": "indices.count_bags",
    "embedding_tables": "indices.count_lookups",
    "index": "indices.count_rows",
    "index_list": "indices.count_index_list",
    "jagged": "indices.count_values",
    "mask": "indices.count_selected",
    "masked_scatter": "indices.count_selected",
    "new_tokens": "indices.count_new_tokens",
    "packed_lengths": "indices.count_packed",
    "padding_mask": "indices.count_selected",
    "paged_attention": "attention.count_attention",
    "positions": "indices.count_positions",
    "repeats": "indices.count_repeats",
    "selected": "indices.count_selected",
}
"""Map of initializer, or "initializer role", to a function in `ops.work`.

The function counts the work that the filled arguments cause.
"""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """One schema version of a vendor op and the plain torch function that computes it."""

    name: str
    """Qualified name, "namespace::op"."""
    overload: str
    """Vendor's overload name, "" for most."""
    schema: str
    since: str
    """ISO date of the first library version with this schema; "" if no version is public."""
    run: Callable[..., Any]
    """Function that computes the op. It is called with those schema arguments that it reads; see `calls`."""
    fake: Callable[..., Any] | None
    """Function that returns the shapes and dtypes of the outputs. None if there are no outputs, or if `run` itself
    works on meta tensors.
    """
    assumes: tuple[str, ...] = ()
    """Assumptions that `run` makes because no argument contains the information."""
    random: bool = False
    """Whether `run` uses torch's random numbers."""
    renames: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Map of argument of `run` to its name in the schema.

    The name can also be "name.attribute" or "name.method()" of a schema argument.
    """
    fixed: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Argument of `run` → its fixed value in this op."""
    into: tuple[str, ...] = ()
    """Arguments to which the results of `run` are written, in order."""

    @property
    def takes(self) -> list[str]:
        """Return the arguments that the function reads, by their names in the schema.

        Some of them may not exist in the schema.
        """
        names = [self.renames.get(name, name) for name in arguments_read(self.run) if name not in self.fixed]
        return [*self.into, *(name.partition(".")[0] for name in names)]


class Row(msgspec.Struct):
    """All table entries of one op."""

    name: str
    family: str = ""
    folder: str = ""
    """Folder of `replay/ops` that holds the op's references."""
    cost: Cost | None = None
    uncosted: str = ""
    """Reason why no time is predicted; totals exclude these ops, but list them."""
    inputs: str = ""
    """Comma-separated names of the initializers that fill the arguments.

    The work is counted as for the first initializer.
    """
    role: str = ""
    """Variant of the initializer for this op, if the initializer has several."""
    like: str = ""
    """Op whose reference implementation this op also uses."""
    renames: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Map of argument of `like` to its name in this op, to "name.attribute" of an argument of this op, or to a
    constant.
    """
    into: str = ""
    """Comma-separated arguments to which the results of `like` are written."""
    declared: list[Reference] = msgspec.field(default_factory=list["Reference"])
    """References declared so far. They are those whose modules are imported and whose `declarations` have run."""
    declarations: list[Callable[[], object]] = msgspec.field(default_factory=list[Callable[[], object]])
    """Functions that add to `declared`.

    They run only when the op is requested, because they read a function's source.
    """

    @property
    def references(self) -> list[Reference]:
        """Return the op's reference implementations. Imports the reference modules of its folder, and with
        them torch.
        """
        with loading:
            if self.folder:
                load("references", self.folder)
            if not self.declared_references() and self.like:
                import_module(f"{room.__name__}.declared").declare_like(self)
            return self.declared_references()

    def declared_references(self) -> list[Reference]:
        """Run the pending declarations and return the references declared so far."""
        with loading:
            waiting, self.declarations = self.declarations, []
            for declare in waiting:
                declare()
            return self.declared

    def give(self, **aspects: Any) -> None:
        """Set fields that are not set yet. Raises ValueError for a field that is already set."""
        for name, value in aspects.items():
            if value and getattr(self, name):
                raise ValueError(f"{self.name} already has its {name}: {getattr(self, name)}")
            if value:
                setattr(self, name, value)


_rows: dict[str, Row] = {}
_patterns: dict[str, Cost] = {}


def row(name: str) -> Row:
    """Return the row of an op, and create it if it does not exist."""
    return _rows.setdefault(name, Row(name))


def _parsed(line: str) -> tuple[list[str], dict[str, str]]:
    """Return the op names of a line, and its key=value settings."""
    words = line.split()
    return [word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word)


def family(
    folder: str,
    name: str,
    ops: str,
    *,
    cost: Cost | None = None,
    kernels: Callable[[str], Cost] | None = None,
    uncosted: str = "",
    inputs: str = "",
    role: str = "",
) -> None:
    """Add ops of one kind.

    Each line of `ops` has space-separated names and settings. `inputs=` or `role=` on a line overrides the family's
    setting. `like=OP` uses the reference implementation of OP for the ops on that line. With it, `theirs=ours` renames
    an argument, `theirs=ours.dtype` uses an attribute of an argument, `theirs=1.5` sets a constant, and `into=a,b`
    lists the arguments to which results are written.

    `folder` holds the reference implementations. `kernels` turns the CANN type in a line's `kernel=` into the cost
    rule. Raises ValueError for a setting that an op already has, and for an unknown key.
    """
    for line in filter(str.strip, ops.splitlines()):
        names, texts = _parsed(line)
        kernel, like, into = (texts.pop(key, "") for key in ("kernel", "like", "into"))
        renames = {key: texts.pop(key) for key in texts.keys() - {"inputs", "role"}} if like else {}
        if not texts.keys() <= {"inputs", "role"} or bool(kernel) != (kernels is not None):
            raise ValueError(
                f"family {name}: {line.strip()!r} sets an unknown key, lacks kernel=, or may not have kernel= (keys: "
                f"inputs=, role=, kernel=, like=; with like= also into= and renames)"
            )
        rule = _left_out(uncosted) if uncosted else cost if kernels is None else kernels(kernel)
        for op in names:
            row(op).give(
                family=name,
                folder=folder,
                cost=rule,
                uncosted=uncosted,
                like=like,
                renames=renames,
                into=into,
                **{"inputs": inputs, "role": role, **texts},
            )


def _left_out(reason: str) -> Cost:
    """Return a cost rule for ops whose time is not predicted."""

    def rule(op: OpView) -> Iterable[KernelCall]:
        op.unbounded = reason
        op.note(f"not predicted: {reason}")
        return []

    return rule


def costs(*names: str) -> Callable[[Cost], Cost]:
    """Decorator: set the cost rule of these ops (space-separated). Raises ValueError for an op that has a rule."""

    def add(cost: Cost) -> Cost:
        for name in " ".join(names).split():
            row(name).give(cost=cost)
        return cost

    return add


def costs_by_kernel(ops: str, rule: Callable[[str], Cost], prefix: str = "aten::") -> None:
    """Set the cost rules of ops to `rule(CANN type)`.

    `ops` contains space-separated "CANN type=name,name". `prefix` is put before each name.
    """
    for kind, _, names in (word.partition("=") for word in ops.split()):
        costs(*(prefix + name for name in names.split(",")))(rule(kind))


def costs_like(*patterns: str) -> Callable[[Cost], Cost]:
    """Decorator: set the cost rule of ops whose names match a regular expression from the start. Exact names have
    priority.
    """

    def add(cost: Cost) -> Cost:
        _patterns.update(dict.fromkeys(patterns, cost))
        return cost

    return add


Part = Literal["families", "references"]


@cache
def _modules() -> dict[Part, tuple[tuple[str, str], ...]]:
    """Return the (folder, module) pairs of modules that define families or cost rules, and of `reference_*` modules."""
    modules_by_part: dict[Part, list[tuple[str, str]]] = {"families": [], "references": []}
    for info in walk_packages(room.__path__, f"{room.__name__}."):
        folder, _, name = info.name.removeprefix(f"{room.__name__}.").rpartition(".")
        if name.startswith("reference_"):
            modules_by_part["references"].append((folder, info.name))
        elif name == "families" or (folder.partition(".")[0] == "costs" and not info.ispkg):
            modules_by_part["families"].append((folder, info.name))
    return {part: tuple(modules) for part, modules in modules_by_part.items()}


_loaded: set[tuple[Part, str | None]] = set()


def load(part: Part, folder: str | None = None) -> None:
    """Import the modules of op families or of reference implementations, from one folder or from all.

    Reference implementations import torch.
    """
    if (part, folder) in _loaded:
        return
    with loading:
        for place, module in _modules()[part]:
            if folder in (None, place):
                import_module(module)
        _loaded.add((part, folder))


def rows() -> Iterator[Row]:
    """Yield all rows that families or cost rules define, sorted by name."""
    load("families")
    return (_rows[name] for name in sorted(_rows))


def find(name: str) -> Row | None:
    """Return the row of an op by its exact name, or None."""
    load("families")
    return _rows.get(name)


def spellings(name: str) -> tuple[str, str, str]:
    """Return a recorded name, this name without its overload, and also without its in-place underscore."""
    namespace, _, rest = name.partition("::")
    rest = rest.split(".")[0]
    return name, f"{namespace}::{rest}", f"{namespace}::{rest.rstrip('_')}"


def cost_of(name: str) -> Cost | None:
    """Return the cost rule of an op.

    It is searched by exact name, then by name without overload or in-place underscore, then by pattern.
    """
    load("families")
    by_name = (known.cost for spelled in spellings(name) if (known := _rows.get(spelled)) is not None)
    rule = next((cost for cost in by_name if cost is not None), None)
    return rule or next((cost for pattern, cost in _patterns.items() if re.match(pattern, name)), None)


def is_pattern(pattern: str) -> bool:
    """Check whether a built-in cost rule is declared for this regular expression."""
    load("families")
    return pattern in _patterns


def _counter_name(known: Row) -> str:
    initializer = known.inputs.partition(",")[0]
    return COUNTERS.get(f"{initializer} {known.role}") or COUNTERS.get(initializer, "")


def role_of(name: str) -> str:
    """Return the initializer variant that an op uses, or "" if the initializer has no variants."""
    known = find(name)
    return "" if known is None else known.role


def counter_of(name: str) -> Counter | None:
    """Return the work counter of an op, or None if its argument values do not affect its work. Imports torch."""
    known = find(name)
    counter = "" if known is None else _counter_name(known)
    if not counter:
        return None
    module, _, function = counter.rpartition(".")
    return getattr(import_module(f"{room.__name__}.work.{module}"), function)


def work_of(context: InitContext, lengths: BatchLengths | None = None) -> Work | None:
    """Return the work that a call's argument values cause.

    Returns None if the op's work depends only on shapes, or if the call does not have the arguments that determine its
    work. `lengths` are the batch's lengths, for ops whose arguments do not contain them. Raises InternalError if a
    counter fails. Imports torch.
    """
    counter = counter_of(context.op)
    if counter is None:
        return None
    with strict(f"work counter {counter.__name__} for {context.op}"):
        try:
            return counter(msgspec.structs.replace(context, role=role_of(context.op)), lengths)
        except InitializerError:
            return None
