# pyright: strict
"""Parse initializer settings, `NAME.OPTION=VALUE`, and check them against the options that the initializer declares."""

from __future__ import annotations

import math
from typing import Protocol

from opreplay.initializers.base import CustomInit, Option, OptionValue
from opreplay.traces.errors import UsageError

FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
ACCEPTED: dict[type, tuple[type, ...]] = {float: (int, float)}
"""Type of an option → types that its values may have. An option of an unlisted type needs values of that type."""


class Known(Protocol):
    """Lookup of initializers by name; raises UsageError for an unknown name."""

    def __getitem__(self, name: str) -> CustomInit: ...


def defaults(rule: CustomInit) -> dict[str, OptionValue]:
    """Return the default value of each option."""
    return {option.name: option.default for option in rule.options}


def check_declared(kind: type[CustomInit]) -> None:
    """Check the options that an initializer declares.

    Raises UsageError if two options have the same name, or if an option does not accept its own default.
    """
    names = [option.name for option in kind.options]
    if len(set(names)) != len(names):
        raise UsageError(f"initializer {kind.name!r} has two options with the same name")
    for option in kind.options:
        value, shown = option.default, f"the default of {kind.name}.{option.name}"
        allowed = ACCEPTED.get(option.type, option.type)
        if value is None:
            continue
        if not isinstance(value, allowed) or (isinstance(value, bool) and option.type is not bool):
            raise UsageError(f"{shown} is {value!r}, which is not of type {option.type.__name__}")
        if option.choices and value not in option.choices:
            raise UsageError(f"{shown} is {value!r}, which is not one of its choices")


def parse_setting(text: str, known: Known) -> tuple[str, str, OptionValue]:
    """Parse "NAME.OPTION=VALUE" to (initializer, option, value).

    Raises UsageError, listing valid alternatives, for a wrong format, unknown names and values that are not allowed.
    """
    key, equals, value = text.partition("=")
    name, dot, chosen = key.strip().partition(".")
    if not equals or not dot:
        raise UsageError(
            f"{text!r} is not an initializer setting",
            hint="Write NAME.OPTION=VALUE, e.g. moe_routing.distribution=zipf.",
        )
    rule = known[name]
    option = next((option for option in rule.options if option.name == chosen), None)
    if option is None:
        names = ", ".join(option.name for option in rule.options) or "none"
        raise UsageError(f"initializer {name!r} has no option {chosen!r}", hint=f"Its options: {names}.")
    return name, chosen, _value(option, f"{name}.{chosen}", value)


def _value(option: Option, shown: str, text: str) -> OptionValue:
    if option.type is bool:
        if text.lower() not in FLAGS:
            raise UsageError(f"{shown} must be true or false, not {text!r}")
        return FLAGS[text.lower()]
    if option.type is str:
        if option.choices and text not in option.choices:
            raise UsageError(f"{shown} cannot be {text!r}", hint=f"Choose one of {', '.join(option.choices)}.")
        return text
    return _number(option, shown, text)


def _number(option: Option, shown: str, text: str) -> OptionValue:
    try:
        number = int(text) if option.type is int else float(text)
    except ValueError:
        raise UsageError(f"{shown} must be a number, not {text!r}") from None
    if not math.isfinite(number) or (option.low is not None and number < option.low):
        raise UsageError(
            f"{shown} must be at least {option.low}, not {text}"
            if option.low is not None
            else f"{shown} must be finite, not {text}"
        )
    return number
