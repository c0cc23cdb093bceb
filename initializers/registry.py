# pyright: strict
"""Registry that decides which initializer an op gets: the first match is used, and duplicates are rejected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.initializers.applying import applies, apply, work_by
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, OptionValue, says_work
from opreplay.initializers.settings import check_declared, defaults, parse_setting
from opreplay.initializers.user_code import place_of_class
from opreplay.traces.errors import UsageError


class Registry:
    """Initializers by op name. The highest priority comes first, then the earliest registration."""

    def __init__(self, roles: Mapping[str, str] | None = None) -> None:
        """Create a registry; `roles` maps ops to variants, for built-in initializers that have several variants."""
        self._by_op: dict[str, list[CustomInit]] = {}
        self._by_name: dict[str, CustomInit] = {}
        self._roles = dict(roles or {})
        self._settings: dict[str, dict[str, OptionValue]] = {}

    def register(self, initializer: CustomInit) -> CustomInit:
        """Add an initializer.

        Raises UsageError for an initializer without a name or ops, for invalid options, and for a name that is already
        taken. Also raises it if an op has another initializer of the same priority, unless both define `applies_to`.
        """
        kind = type(initializer)
        ops = initializer.op_patterns
        refuse_unusable(kind, ops, kind)
        check_declared(kind)
        if kind.name in self._by_name:
            raise UsageError(
                f"{place_of_class(kind)}: there is already an initializer named {kind.name!r}",
                hint="Give yours another name. `opreplay list initializers` shows those that are built in.",
            )
        for op in ops:
            self._refuse_shadowed(op, kind)
        self._by_name[kind.name] = initializer
        for op in ops:
            rules = self._by_op.setdefault(op, [])
            rules.append(initializer)
            rules.sort(key=lambda rule: -rule.priority)
        return initializer

    def find(self, context: InitContext) -> CustomInit | None:
        """Return the first initializer that lists the op and applies to this call, or None.

        Raises InitializerError if the `applies_to` of an initializer fails.
        """
        context = self._with_role(context)
        return next((rule for rule in self._by_op.get(context.op, ()) if applies(rule, context)), None)

    def rules_for(self, op: str) -> tuple[CustomInit, ...]:
        """Return all initializers that list the op, in the order in which they are tried."""
        return tuple(self._by_op.get(op, ()))

    def configure(self, settings: Sequence[str]) -> None:
        """Apply settings "NAME.OPTION=VALUE".

        Raises UsageError for unknown names, invalid values, settings given twice, and options that cannot be combined.
        """
        for text in settings:
            name, option, value = parse_setting(text, self)
            values = self._settings.setdefault(name, {})
            if option in values:
                raise UsageError(f"{name}.{option} is given twice")
            values[option] = value
        for name in self._settings:
            try:
                self[name].check_options(self.options_of(self[name]))
            except InitializerError as error:
                raise UsageError(f"initializer {name!r}: {error}") from error

    def options_of(self, rule: CustomInit) -> Mapping[str, OptionValue]:
        """Return all options of an initializer with the values that the user set, or with their defaults."""
        return {**defaults(rule), **self._settings.get(rule.name, {})}

    def apply(self, rule: CustomInit, context: InitContext) -> InitReport:
        """Let an initializer fill the tensors on one thread, with its options. Raises InitializerError if it fails."""
        from opreplay.initializers.fill import one_thread

        with one_thread():
            return apply(rule, msgspec.structs.replace(self._with_role(context), options=self.options_of(rule)))

    def work(self, context: InitContext) -> Work | None:
        """Return the work of a filled call, as its initializer computes it. Raises InitializerError if that fails."""
        rule = next((rule for rule in self._by_op.get(context.op, ()) if says_work(rule)), None)
        if rule is None or self.find(context) is not rule:
            return None
        return work_by(rule, msgspec.structs.replace(self._with_role(context), options=self.options_of(rule)))

    def _with_role(self, context: InitContext) -> InitContext:
        return msgspec.structs.replace(context, role=self._roles.get(context.op, ""))

    def __getitem__(self, name: str) -> CustomInit:
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name))
            raise UsageError(f"unknown initializer {name!r}", hint=f"Known: {known}.") from None

    def __iter__(self) -> Iterator[CustomInit]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def _refuse_shadowed(self, op: str, kind: type[CustomInit]) -> None:
        """Raise UsageError if another initializer of `op` would always hide `kind`, or be hidden by it.

        This happens if both have the same priority and at least one of them applies to all calls.
        """
        for rule in self._by_op.get(op, ()):
            if rule.priority == kind.priority and CustomInit.applies_to in (type(rule).applies_to, kind.applies_to):
                raise UsageError(
                    f"{place_of_class(kind)}: initializers {type(rule).name!r} and {kind.name!r} both name {op} at "
                    f"priority {kind.priority}",
                    hint="Give one of them a higher priority.",
                )


def refuse_unusable(kind: type[CustomInit], ops: object, written: type) -> None:
    """Raise UsageError for an initializer that cannot be used.

    The reasons are a missing name, a priority that is not an int, and op names that are missing, invalid or listed
    twice. `written` is the class whose location the message gives.
    """

    def refuse(why: str, hint: str) -> None:
        place = place_of_class(written)  # parses the file: 10 ms
        raise UsageError(f"{place}: initializer {kind.name or kind.__name__} {why}", hint=hint)

    if not isinstance(cast("object", kind.name), str) or not kind.name.strip():
        refuse("needs a name", 'Give the class name = "...", which results show.')
    if type(cast("object", kind.priority)) is not int:
        refuse(
            f"has priority {kind.priority!r}, which is not a whole number",
            "Give the class priority = 1, or leave it out.",
        )
    if not ops:
        refuse("needs op_patterns", 'Give the class op_patterns = ("namespace::op",).')
    if not isinstance(ops, tuple | list):
        refuse("has op_patterns that are not a tuple of names", 'Write op_patterns = ("namespace::op",).')
    names = cast("Sequence[object]", ops)
    for op in names:
        if not isinstance(op, str) or not _OP.fullmatch(op):
            refuse(f"is for {op!r}, which is not an op name", _hint_for(op))
    if len(set(names)) != len(names):
        refuse("names an op twice", "Leave one of them out.")


_OP = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+")


def _hint_for(op: object) -> str:
    text = str(op)
    if "*" in text or "?" in text:
        return "Initializers need exact names: list each op, without * and ?."
    if "::" in text and "." in text:
        return f"Leave the overload out: {text.partition('.')[0]}."
    return 'Write "namespace::op", as reports print it.'


def built_in_kinds() -> list[type[CustomInit]]:
    """Return the classes of all built-in initializers, whose `op_patterns` are still empty. Imports torch."""
    from opreplay.initializers.rules import (
        attention,
        domains,
        embedding_tables,
        factorizations,
        indices,
        jagged,
        masks,
        moe_routing,
        paged_attention,
        positions,
        quantized,
        row_numbers,
        segments,
        serving_lists,
    )

    modules = (
        domains,
        indices,
        embedding_tables,
        jagged,
        masks,
        quantized,
        attention,
        paged_attention,
        moe_routing,
        positions,
        factorizations,
        segments,
        serving_lists,
        row_numbers,
    )
    return [kind for module in modules for kind in module.INITIALIZERS]
