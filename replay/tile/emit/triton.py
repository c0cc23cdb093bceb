"""Write tile programs as one Triton file: kernels, launchers, and a torch.library op for each program.

A kernel serves all sizes and dtypes for which the program runs the same statements. If an `if`, `range` or dict key in
the Python program depends on a size, there is one kernel for each outcome that occurs in the cases. The launcher
chooses the kernel.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.tile.cases import Case, base_cases, default_set
from opreplay.replay.tile.emit.kernel import (
    MOST_FORKS,
    Choice,
    Fork,
    Kernel,
    Loop,
    Node,
    Statement,
    Tracer,
    statements_of,
)
from opreplay.replay.tile.emit.values import TRACER, DType, Ref, Refused, Value, atom
from opreplay.replay.tile.emit.vocabulary import rebuilt
from opreplay.replay.tile.program import Bound, Program, bind
from opreplay.traces.errors import OpReplayError
from opreplay.traces.model import TensorMeta, contiguous_strides

NAMESPACE = "tile_triton"
"""Namespace of the ops that an emitted file defines."""
MOST_VARIANTS = 64
"""Maximum number of kernels per program."""

HEAD = '''\
"""Triton kernels of {source}: each op writes its results into the tensors given for them."""

import os
from typing import Optional, Sequence

import torch
import triton
import triton.language as tl


def _block(size: int, least: int = 1) -> int:
    """The power of two that a block of a kernel has along a dimension."""
    return max(least, triton.next_power_of_2(max(1, size)))
'''
ROUND = """\

@triton.jit
def round_half_even(x):
    down = tl.floor(x)
    rest = x - down
    odd = down - 2 * tl.floor(down * 0.5)
    return tl.where((rest > 0.5) | ((rest == 0.5) & (odd != 0)), down + 1, down)
"""
DOT = """\

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot(a, b, acc):
    if INTERPRETED and (a.dtype == tl.bfloat16 or a.dtype.primitive_bitwidth == 8):
        # The interpreter has these as whole numbers; their products are exact in float32.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
"""
HELPERS = {"round_half_even": ROUND, "dot": DOT}
"""Name → source of a function that kernels use."""


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a program is not emitted."""

    program: Program
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{Path(self.program.place.rpartition(':')[0]).name}:{self.line}: {self.program.name}: {self.reason}"


class Emitted(msgspec.Struct, frozen=True):
    """Source code, the programs whose kernels it contains, and the programs left out."""

    text: str
    programs: tuple[str, ...]
    refused: tuple[Refusal, ...]


def emit(programs: Sequence[Program], cases: Sequence[Case] = ()) -> Emitted:
    """Emit the programs as Triton kernels that cover the given cases and the programs' own cases.

    The kernels also cover the default set (`default_set`) derived from the first case of each rank. A program without
    cases is emitted for matrices.
    """
    parts: list[str] = []
    names: list[str] = []
    refused: list[Refusal] = []
    for program in programs:
        mine = [case for case in cases if case.program is program]
        bases = [*base_cases(program)] if program.cases or not mine else []
        listed = [*bases, *mine]
        try:
            parts.append(
                _program(program, [*listed, *(c for base in _by_rank(listed) for c in default_set(program, base))])
            )
            names.append(program.name)
        except Refused as why:
            refused.append(Refusal(program, why.line or 0, why.reason))
    source = ", ".join(sorted({Path(p.place.rpartition(":")[0]).name for p in programs}))
    used = _words("\n".join(parts))
    helpers = "".join(text for name, text in HELPERS.items() if name in used)
    return Emitted("\n".join([HEAD.format(source=source) + helpers, *parts]), tuple(names), tuple(refused))


def _by_rank(cases: Sequence[Case]) -> list[Case]:
    """Return the first case for each combination of the tensors' numbers of dimensions."""
    first: dict[tuple[int, ...], Case] = {}
    for case in cases:
        ranks = tuple(len(value.shape) for value in case.arguments.values() if isinstance(value, TensorMeta))
        first.setdefault(ranks, case)
    return list(first.values())


def traced(bound: Bound) -> Kernel:
    """Return the kernel's statements for a case. Raises Refused if the program cannot be emitted."""
    taken = [*(p.name for p in bound.program.parameters), *bound.settings]
    shapes = {name: len(meta.shape) for name, meta in bound.tensors.items()}
    taken += [f"{name}_{kind}{dim}" for name, rank in shapes.items() for dim in range(rank) for kind in ("", "s")]
    taken += [f"{name}_ptr" for name in shapes]
    kernel = Kernel()
    runs: list[list[Node]] = []
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        tracer = _run(bound, Tracer(taken, kernel, path))
        runs.append(tracer.statements)
        choices = tuple(fork.choice for fork in tracer.forks)
        for at, fork in reversed(list(enumerate(tracer.forks))[len(path) :]):
            paths += [(*choices[:at], other) for other in reversed(range(1, len(fork.conditions)))]
        if len(runs) + len(paths) > MOST_FORKS:
            raise Refused(f"more than {MOST_FORKS} branches depend on the position of a block")
    kernel.statements = _tree(runs)
    return kernel


def _tree(runs: Sequence[list[Node]]) -> list[Node]:
    """Merge runs, which have the same statements up to a branch point, into one tree."""
    first = runs[0]
    at = next((i for i, node in enumerate(first) if isinstance(node, Fork)), None)
    if at is None:
        _coalesced(first)
        return first
    fork = first[at]
    assert isinstance(fork, Fork)
    groups: dict[int, list[list[Node]]] = {}
    for run in runs:
        other = run[at]
        assert isinstance(other, Fork)
        groups.setdefault(other.choice, []).append(run[at + 1 :])
    branches = [(fork.conditions[choice], _tree(group)) for choice, group in sorted(groups.items())]
    return [*first[:at], Choice(branches, fork.line)]


def _run(bound: Bound, tracer: Tracer) -> Tracer:
    arguments = [_argument(p.name, p.role, bound, tracer) for p in bound.program.parameters]
    settings = {name: _number(name, value, tracer) for name, value in bound.settings.items()}
    token = TRACER.set(tracer)
    try:
        rebuilt(bound.program.function)(*arguments, **settings)
    except (OpReplayError, Refused):
        raise
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}", _line_of(error, bound.program)) from error
    finally:
        TRACER.reset(token)
    return tracer


def _argument(name: str, role: str, bound: Bound, tracer: Tracer) -> Any:
    if role == "scalar":
        return _number(name, bound.scalars[name], tracer)
    meta = bound.tensors[name]
    strides = meta.strides or contiguous_strides(meta.shape)
    dims = [
        (atom(at, size, frozenset((at,))), atom(step, stride, frozenset((step,))))
        for dim, (size, stride) in enumerate(zip(meta.shape, strides, strict=True))
        for at, step in [(f"{name}_{dim}", f"{name}_s{dim}")]
    ]
    return Ref(name, role, DType.of(meta.dtype, name), dims)


def _number(name: str, value: Any, tracer: Tracer) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return atom(name, value, frozenset((name,)))
    tracer.kernel.fixed[name] = value
    return value


def _line_of(error: Exception, program: Program) -> int:
    file, line = program.function.__code__.co_filename, program.function.__code__.co_firstlineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _coalesced(body: list[Node]) -> None:
    """Remove assignments that only copy a value, if the value is not used anywhere else."""
    uses: Counter[int] = Counter()
    for node in statements_of(body):
        uses.update(id(part) for part in node.parts if isinstance(part, Value))
    for at in reversed(range(len(body))):
        node = body[at]
        if isinstance(node, Statement) and node.target is not None and len(node.parts) == 1:
            source = node.parts[0]
            makers = {id(n.target) for n in body[:at] if isinstance(n, Statement)}
            if isinstance(source, Value) and uses[id(source)] == 1 and id(source) in makers:
                node.target.call(source.name)
                source.alias = node.target
                del body[at]


# Text


class _Line(msgspec.Struct):
    indent: int
    text: str
    target: str
    place: tuple[str, int]


def _lines(body: Sequence[Node], indent: int) -> list[_Line]:
    out: list[_Line] = []
    for node in body:
        if isinstance(node, Loop):
            out.append(_Line(indent, node.head, "", node.line))
            out += _lines(node.body, indent + 1)
            continue
        if isinstance(node, Choice):
            out += _choice_lines(node, indent)
            continue
        assert isinstance(node, Statement)
        text = "".join(part.name if isinstance(part, Value) else part for part in node.parts)
        target = "" if node.target is None else node.target.name
        out.append(_Line(indent, text if not target else f"{target} = {text}", target, node.line))
    return out


def _choice_lines(choice: Choice, indent: int) -> list[_Line]:
    out: list[_Line] = []
    for at, (condition, body) in enumerate(choice.branches):
        word = "if" if not at else "elif" if at < len(choice.branches) - 1 else "else"
        head = "else:" if word == "else" else f"{word} {condition}:"
        out.append(_Line(indent, head, "", choice.line))
        out += _lines(body, indent + 1)
        if all(each.target is not None for each in statements_of(body)):
            out.append(_Line(indent + 1, "pass", "", choice.line))
    return out


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _used(lines: list[_Line]) -> list[_Line]:
    """Remove lines whose result no other line uses."""
    while True:
        uses: Counter[str] = Counter()
        for line in lines:
            uses.update(_words(line.text.partition(" = ")[2] if line.target else line.text))
        left = [line for line in lines if not line.target or uses[line.target]]
        if len(left) == len(lines):
            return lines
        lines = left


class _Variant(msgspec.Struct):
    """A kernel with the data for its launcher."""

    source: str
    """Source of the kernel, with NAME in place of its name."""
    launch: list[str]
    """Lines of the launcher."""


def _program(program: Program, cases: Sequence[Case]) -> str:
    variants: list[_Variant] = []
    types: dict[str, str] = {}
    for case in cases:
        bound = bind(program, case.arguments, case.settings)
        for name, value in {**bound.scalars, **bound.settings}.items():
            types[name] = _type(value) if value is not None else types.get(name, "Optional[int]")
        variant = _variant(bound, traced(bound))
        if (variant.launch, variant.source) not in [(other.launch, other.source) for other in variants]:
            variants.append(variant)
    if len(variants) > MOST_VARIANTS:
        raise Refused(f"more than {MOST_VARIANTS} kernels: the program differs from size to size", _first_line(program))
    kernels: dict[str, str] = {}
    for variant in variants:
        number = len(kernels) + 1
        kernels.setdefault(variant.source, f"{program.name}_kernel{number if number > 1 else ''}")
    parts = [source.replace("NAME", name) for source, name in kernels.items()]
    parts.append(_launcher(program, variants, kernels, types))
    return "\n".join(parts)


def _first_line(program: Program) -> int:
    return program.function.__code__.co_firstlineno


def _type(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "Optional[Sequence[int]]"
    return type(value).__name__


def _variant(bound: Bound, kernel: Kernel) -> _Variant:
    lines = _used(_lines(kernel.statements, 1))
    body = "\n".join(line.text for line in lines)
    vectors = [
        f"    at_{size.name.lower()} = tl.arange(0, {size.name})"
        for size in kernel.sizes.values()
        if f"at_{size.name.lower()}" in _words(body)
    ]
    words = _words(body + "\n" + "\n".join(vectors))
    pointers = [name for name in bound.tensors if f"{name}_ptr" in words]
    sizes = [size for size in kernel.sizes.values() if size.name in words]
    numbers = [name for name in _numbers(bound) if name in words]
    hoisted = {name: text for text, name in kernel.hoisted.items() if name in words}
    constants = [name for name in bound.settings if name in words]
    signature = [
        *(f"{name}_ptr" for name in pointers),
        *numbers,
        *hoisted,
        *(f"{name}: tl.constexpr" for name in [*constants, *(size.name for size in sizes)]),
    ]
    text = ["", "@triton.jit", f"def NAME({', '.join(signature)}):", *vectors, *_commented(lines)]
    call = [*pointers, *numbers, *hoisted, *(f"{name}={name}" for name in constants)]
    call += [f"{s.name}=_block({s.size}{f', {s.least}' if s.least > 1 else ''})" for s in sizes]
    return _Variant("\n".join(text) + "\n", _launch(bound, kernel, hoisted, call))


def _numbers(bound: Bound) -> list[str]:
    shapes = {name: range(len(meta.shape)) for name, meta in bound.tensors.items()}
    out = [f"{name}_{kind}{dim}" for name, dims in shapes.items() for kind in ("", "s") for dim in dims]
    return [*out, *bound.scalars]


def _commented(lines: Sequence[_Line]) -> list[str]:
    """Add the program's source lines as comments."""
    out: list[str] = []
    before = ("", 0)
    for line in lines:
        if line.place != before:
            source = linecache.getline(*line.place).strip()
            if source and source != line.text:
                out.append(f"{'    ' * line.indent}# {source}")
            before = line.place
        out.append("    " * line.indent + line.text)
    return out


def _conditions(bound: Bound, kernel: Kernel) -> list[str]:
    out = [f"{name}.dim() == {len(meta.shape)}" for name, meta in bound.tensors.items()]
    exact = {text.split(".")[0] for text in kernel.dtypes if "==" in text}
    out += [text for text, name in kernel.dtypes.items() if "==" in text or name not in exact]
    return out


def _sizes(bound: Bound, words: Container[str]) -> Iterator[str]:
    """Yield lines that assign tensor sizes and strides to their names, for the names in `words`."""
    for name, meta in bound.tensors.items():
        for kind, method in (("", "shape"), ("s", "stride()")):
            for dim in range(len(meta.shape)):
                if f"{name}_{kind}{dim}" in words:
                    yield f"{name}_{kind}{dim} = {name}.{method}[{dim}]"


def _launch(bound: Bound, kernel: Kernel, hoisted: Mapping[str, str], call: Sequence[str]) -> list[str]:
    """Return launcher code. It launches a kernel, or returns False if the kernel is not valid for the arguments."""
    later = [f"{name} {'is' if value is None else '=='} {value!r}" for name, value in kernel.fixed.items()]
    later += [text for text, bases in kernel.conditions.items() if not bases <= set(kernel.fixed)]
    later += [f"{name}.numel() < 2**31" for name in bound.tensors]  # places are 32-bit numbers
    later += [f"{name}.is_contiguous()" for name in bound.tensors if name in kernel.contiguous]
    text = " ".join([*call, *later, kernel.grid, *hoisted.values()])
    words = _words(text)
    out = [f"if not ({' and '.join(_conditions(bound, kernel))}):", "    return False"]
    out += _sizes(bound, words)
    if later:
        out += [f"if not ({' and '.join(later)}):", "    return False"]
    out += [f"{name} = {value}" for name, value in hoisted.items()]
    out += [f"{p.name}.zero_()" for p in bound.program.parameters if p.role == "sum"]
    out += [f"grid = {kernel.grid}", "if grid > 0:", f"    NAME[(grid,)]({', '.join(call)})", "return True"]
    return out


def _launcher(
    program: Program, variants: Sequence[_Variant], kernels: Mapping[str, str], types: Mapping[str, str]
) -> str:
    plain = [p.name for p in program.parameters] + list(program.settings)
    typed: list[str] = []
    for p in program.parameters:
        if p.role != "scalar":
            typed.append(f"{p.name}: torch.Tensor")
        else:
            typed.append(f"{p.name}: {types[p.name]}" + ("" if p.required else f" = {p.default!r}"))
    settings = [f"{name}: {types[name]} = {value!r}" for name, value in program.settings.items()]
    signature = ", ".join([*typed, *(["*"] if settings else []), *settings])
    results = [p.name for p in program.outputs]
    out: list[str] = []
    for number, variant in enumerate(variants, start=1):
        out += ["", f"def _launch_{program.name}_{number}({', '.join(plain)}) -> bool:"]
        out += ["    " + line.replace("NAME[", f"{kernels[variant.source]}[") for line in variant.launch]
        out.append("")
    launches = [f"_launch_{program.name}_{number}" for number in range(1, len(variants) + 1)]
    summary = (program.function.__doc__ or program.name).strip().splitlines()[0]
    mutated = ", ".join(f'"{name}"' for name in results)
    out += [
        "",
        f'@torch.library.custom_op("{NAMESPACE}::{program.name}", mutates_args=({mutated},))',
        f"def {program.name}({signature}) -> None:",
        f'    """{summary}"""',
        f"    for launch in ({', '.join(launches)},):",
        f"        if launch({', '.join(plain)}):",
        "            return",
        f'    raise ValueError("{program.name}: no kernel for these sizes, strides and dtypes: emit it with --case")',
        "",
    ]
    return "\n".join(out)
