# pyright: strict
"""Cases of programs: texts such as "rms_norm x=bf16[4096,1024] w=bf16[n]", sweeps over sizes, and the default set."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from opreplay.replay.ir.notation import parse_sizes, parse_value, tensor_text
from opreplay.replay.tile.program import FLOATS, Program
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

MOST_CASES = 2_000
STANDARD = ((1, 1), (47, 10), (128, 128))
"""Sizes used to check values: one element, sizes that are no multiple of a block, and a round size."""
MOST_DEFAULT = 520
"""Largest size of the default set: larger than a block in most settings, but still quick to run."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A program with concrete arguments."""

    program: Program
    arguments: Mapping[str, Any]
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    checked_only: bool = False
    """Whether the case is from the default set, which only checks values."""

    @property
    def text(self) -> str:
        """The arguments as text: "x=bf16[4096,1024] w=bf16[1024] eps=1e-05"."""
        return " ".join(
            f"{name}={tensor_text(value) if isinstance(value, TensorMeta) else value}"
            for name, value in self.arguments.items()
        )


def parse_case(text: str, known: Sequence[Program], sizes: Mapping[str, int] | None = None) -> Case:
    """Parse the text of a case. Raises UsageError for an unknown program or argument."""
    name, _, rest = text.strip().partition(" ")
    by_name = {program.name: program for program in known}
    if name not in by_name and "=" in name and len(known) == 1:
        name, rest = known[0].name, text.strip()
    if name not in by_name:
        raise UsageError(
            f"{name!r} is not a kernel of this file",
            hint=f"Its kernels: {', '.join(by_name) or 'none'}. Write NAME x=bf16[4096,1024].",
        )
    arguments: dict[str, Any] = {}
    for part in _parts(rest):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"{part!r} is not an argument", hint="Write NAME=bf16[4096,1024] or NAME=1e-5.")
        arguments[key] = _value(value, sizes)
    return Case(program=by_name[name], arguments=arguments)


def _parts(text: str) -> list[str]:
    """Split the text at blanks outside brackets and quotes."""
    out: list[str] = []
    depth, quote, start = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "[({":
            depth += 1
        elif sign in "])}":
            depth -= 1
        elif sign.isspace() and depth == 0:
            out.append(text[start:at])
            start = at + 1
    out.append(text[start:])
    return [part for part in out if part]


def _value(text: str, sizes: Mapping[str, int] | None) -> Any:
    if re.fullmatch(r"[a-z_]+\d*", text) and text not in ("true", "false", "none", "inf", "nan", *(sizes or {})):
        return text
    return parse_value(text, sizes=sizes)


_WORD = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?![\w\[(=.])")


def expand(texts: Sequence[str], known: Sequence[Program], shapes: Sequence[str]) -> tuple[Case, ...]:
    """Return the cases of each text: one for each combination of values of the sizes in the text.

    `shapes` holds the values, e.g. "n=1,47,128". Raises UsageError for too many cases, and for a size that no text
    names.
    """
    swept: dict[str, tuple[int, ...]] = {}
    for sweep in shapes:
        name, values = parse_sizes(sweep)
        swept[name] = values
    cases: list[Case] = []
    used: set[str] = set()
    for text in texts:
        inside = " ".join(re.findall(r"\[[^\]]*\]|=[^\s]+", text))
        names = [name for name in swept if name in _WORD.findall(inside)]
        used |= set(names)
        for values in itertools.product(*(swept[name] for name in names)):
            cases.append(parse_case(text, known, dict(zip(names, values, strict=True))))
            if len(cases) > MOST_CASES:
                raise UsageError(f"more than {MOST_CASES:,} cases", hint="Use fewer sizes.")
    if unused := sorted(set(swept) - used):
        raise UsageError(f"no case uses the size {unused[0]}", hint=f"Write it in brackets: x=bf16[{unused[0]},1024].")
    return tuple(cases)


def with_settings(cases: Sequence[Case], sweeps: Sequence[str]) -> tuple[Case, ...]:
    """Return each case with every combination of settings ("rows=1,2,4"). Raises UsageError for an unknown setting."""
    values = dict(map(_swept_values, sweeps))
    takes = sorted({setting for case in cases for setting in case.program.settings})
    if unknown := [name for name in values if name not in takes]:
        raise UsageError(f"{unknown[0]} is not a setting", hint=f"Settings are {', '.join(takes) or 'none'}.")
    out: list[Case] = []
    for case in cases:
        swept = {name: each for name, each in values.items() if name in case.program.settings}
        for combination in itertools.product(*swept.values()):
            out.append(
                msgspec.structs.replace(case, settings={**case.settings, **dict(zip(swept, combination, strict=True))})
            )
    if len(out) > MOST_CASES:
        raise UsageError(f"more than {MOST_CASES:,} combinations", hint="Use fewer settings.")
    return tuple(out)


def _swept_values(sweep: str) -> tuple[str, tuple[Any, ...]]:
    """Parse the name and the values of a setting such as "rows=1,2,4"."""
    name, equals, right = sweep.partition("=")
    if not equals or not right.strip():
        raise UsageError(f"{sweep!r} does not set anything", hint="Write --set rows=1,2,4.")
    try:
        return name.strip(), parse_sizes(sweep)[1]
    except UsageError:
        return name.strip(), tuple(_value(word.strip(), None) for word in right.split(","))


def base_cases(program: Program) -> tuple[Case, ...]:
    """Return the default cases of a program: its own, or one with all tensors as 128 × 128 matrices."""
    if program.cases:
        return tuple(parse_case(f"{program.name} {text}", [program]) for text in program.cases)
    meta = TensorMeta(shape=(128, 128), dtype=program.dtypes[0])
    arguments = {p.name: meta for p in program.inputs if p.role != "scalar"}
    return (Case(program=program, arguments=arguments),)


def default_set(program: Program, base: Case) -> tuple[Case, ...]:
    """Return the cases for checking values, in each dtype of the program: its `checks` or, without them, generated
    cases.

    Generated cases are the base case with small and odd sizes. Equal sizes stay equal, and 1 stays 1. Cases in the base
    dtype also have sizes of one more than a block size; these are the two largest block sizes in the settings.
    """
    if program.checks:
        checks = [parse_case(f"{program.name} {text}", [program]) for text in program.checks]
        return tuple(
            msgspec.structs.replace(_in_dtype(case, dtype), checked_only=True)
            for case in checks
            for dtype in program.dtypes
        )
    metas = _tensors(base)
    sizes = list(dict.fromkeys(n for meta in metas for n in meta.shape if n != 1))
    cases = [
        _in_dtype(_resized(base, _pattern(sizes, values)), dtype) for dtype in program.dtypes for values in STANDARD
    ]
    beyond = sorted({int(v) + 1 for v in program.settings.values() if type(v) is int and 0 < v < MOST_DEFAULT})[-2:]
    if beyond and _float_dtype(metas) in program.dtypes:
        cases += [_resized(base, _pattern(sizes, (n, n))) for n in beyond]
        cases.append(_resized(base, _pattern(sizes, beyond[::-1])))
    return tuple({case.text: msgspec.structs.replace(case, checked_only=True) for case in cases}.values())


def _tensors(case: Case) -> list[TensorMeta]:
    return [value for value in case.arguments.values() if isinstance(value, TensorMeta)]


def _float_dtype(metas: Sequence[TensorMeta]) -> str | None:
    """Return the dtype of the first floating-point tensor; None if there is none."""
    return next((meta.dtype for meta in metas if meta.dtype in FLOATS), None)


def smaller(case: Case, fits: Callable[[Case], bool], keeps: Callable[[Case], bool] | None = None) -> Case | None:
    """Return a smaller case: the case's largest size is halved repeatedly until `fits` accepts the case.

    A size is not halved if `keeps` rejects the result. Return None if no such case fits.
    """
    sizes = {n: n for meta in _tensors(case) for n in meta.shape}
    open_sizes, candidate = set(sizes), case
    while not fits(candidate):
        largest = max(open_sizes, key=lambda n: (sizes[n], n), default=0)
        if sizes.get(largest, 0) <= 1:
            return None
        halved = _resized(case, {**sizes, largest: sizes[largest] // 2})
        if keeps is not None and not keeps(halved):
            open_sizes.discard(largest)
            continue
        sizes[largest] //= 2
        candidate = halved
    return candidate


def _pattern(sizes: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    return {size: values[i % len(values)] for i, size in enumerate(sizes)}


def _resized(base: Case, sizes: Mapping[int, int]) -> Case:
    arguments = {
        name: msgspec.structs.replace(value, shape=tuple(sizes.get(n, n) for n in value.shape), strides=None)
        if isinstance(value, TensorMeta)
        else value
        for name, value in base.arguments.items()
    }
    return msgspec.structs.replace(base, arguments=arguments)


def _in_dtype(base: Case, dtype: str) -> Case:
    """Return a case in which the first floating-point dtype is replaced by `dtype` in all tensors."""
    float_dtype = _float_dtype(_tensors(base))
    arguments = {
        name: msgspec.structs.replace(value, dtype=dtype)
        if isinstance(value, TensorMeta) and value.dtype == float_dtype
        else value
        for name, value in base.arguments.items()
    }
    return msgspec.structs.replace(base, arguments=arguments)


MOST_TRIED = 300
"""Maximum number of combinations of settings that --tune tries per case."""


def to_tune(case: Case) -> tuple[Case, ...]:
    """Return one case for each combination of settings to try.

    The program's `choices` give the values of settings. If it has none, integers are multiplied by 1/4 to 4. If there
    are more than `MOST_TRIED` combinations, the last settings keep their defaults.
    """
    values: dict[str, list[Any]] = {}
    count = 1
    for name, default in case.program.settings.items():
        choices = case.program.choices.get(name)
        tried = list(choices) if choices is not None else _around(default) if not case.program.choices else [default]
        if default not in tried:
            tried.append(default)
        if count * len(tried) > MOST_TRIED:
            tried = [default]
        count *= len(tried)
        values[name] = tried
    return tuple(
        Case(program=case.program, arguments=case.arguments, settings=dict(zip(values, combination, strict=True)))
        for combination in itertools.product(*values.values())
    )


def _around(default: Any) -> list[Any]:
    if type(default) is not int or default < 1:
        return [default]
    return sorted({max(1, default // 4), max(1, default // 2), default, default * 2, default * 4})
