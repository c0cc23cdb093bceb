# pyright: strict
"""Writes a Python file as a starting point for one op of a trace.

It contains an executor, initializer, estimator or tile kernel, and a test of it. Names and values come from the plan. A
text from a trace cannot become code: it is quoted, or checked to be an identifier.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

from opreplay.initializers.base import CustomInit
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.names import split_name
from opreplay.replay.ir.notation import call_text
from opreplay.replay.ops.aten.table import EQUIVALENTS
from opreplay.replay.resolve.names import candidates
from opreplay.replay.resolve.policy import Policy, refuse_name
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta
from opreplay.traces.names import escape_controls

Kind = Literal["op", "initializer", "estimator", "tile"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FLOATS = ("float16", "bfloat16", "float32")
_UNARY = ("exp", "sqrt", "rsqrt", "abs", "reciprocal", "relu", "tanh", "sigmoid", "silu")
_TILE_FORMULAS = {
    **{name: f"tile.{name}({{0}})" for name in _UNARY},
    **dict.fromkeys(("clone", "contiguous", "_to_copy", "alias_copy"), "{0}"),
    "neg": "{0} * -1.0",
    "mul": "{0} * {1}",
}
"""aten op → formula on float32 tiles."""


def scaffold(
    kind: Kind,
    op: ReplayOp,
    *,
    trace: str,
    initializer: CustomInit | None,
    has_stand_in: bool,
    plugins: Sequence[str] = (),
) -> str:
    """Return the text of the file. The file first loads `plugins`.

    `initializer` is the op's built-in initializer, if any. `has_stand_in` says whether opreplay has a reference
    implementation of the op. Raises UsageError in two cases: the op's name or arguments are not sufficiently known, or
    an initializer is requested and the op's library is not installed.
    """
    is_named = _NAME.fullmatch(op.called) is not None and bool(op.args)
    if is_named and op.reason is not None and kind == "initializer" and lacks_library(op):
        why = "" if op.reason.kind == "policy" else f": {op.reason}"  # a policy's text names options of other commands
        raise UsageError(
            f"{op.name} cannot be called here, so an initializer for it cannot be tested{why}",
            hint="Install its library, or name the file or module that registers the op: --plugin FILE.",
        )
    if not is_named or (op.reason is not None and not lacks_library(op)):
        raise UsageError(
            f"{op.name} cannot be called again: {op.reason or 'its arguments are not known'}", hint="Take another op."
        )
    body = {
        "op": lambda: _executor(op, has_stand_in=has_stand_in),
        "initializer": lambda: _initializer(op, initializer),
        "estimator": lambda: _estimator(op),
        "tile": lambda: _tile(op),
    }[kind]()
    about = f"{kind} of {op.called}: {describe_inputs(op)}, {op.count:,} calls recorded."
    about = escape_controls(about).translate(_PLAIN)
    command = f"opreplay {'simulate' if kind in ('estimator', 'tile') else 'run'}"
    flags = "--soc 910b3 --plugin" if kind in ("estimator", "tile") else f"--include {op.id} --plugin"
    return f'''"""{about[:1].upper()}{about[1:]}

    python -m pytest FILE
    {command} {escape_controls(trace).translate(_PLAIN)} {flags} FILE
"""

import opreplay
{_loading(plugins)}
CALL = {call_text(op)!r}


{body}'''


def lacks_library(op: ReplayOp) -> bool:
    """Check whether no installed library registers the op, so that only user code can run it."""
    if op.reason is None or split_name(op.called) is None or refuse_name(op.called, Policy()) is not None:
        return False
    return candidates(op.called, Policy()).reason is not None


def _loading(plugins: Sequence[str]) -> str:
    """Return the lines that load the plugins, which define the op; "" if there are none."""
    if not plugins:
        return ""
    return (
        f"from opreplay.replay.plugins import load_plugins\n\nload_plugins({list(plugins)!r})  # what defines the op\n"
    )


_PLAIN = {ord(character): None for character in '"\\\n\r'} | dict.fromkeys(range(32))
"""Translation table that removes characters that would end a docstring, end a line of it, or start an escape."""


def _executor(op: ReplayOp, *, has_stand_in: bool) -> str:
    names, keyword_only = _identifiers(op), [arg.keyword_only for arg in op.args]
    by_schema = op.resolved_by == "jit" and bool(op.schema) and not any(map(_names_torch, op.args))
    given = ", ".join(
        f"{arg.name}={_of_torch(arg)}" if arg.keyword_only else _of_torch(arg)
        for arg in op.args
        if not (arg.keyword_only and arg.type.startswith("Device"))
    )
    namespace, _, base = op.called.partition("::")
    head, calling = ["import torch"], f"torch.ops.{namespace}.{base}{_overload(op)}({given})"
    if op.resolved_by == "equivalent" and op.called in EQUIVALENTS:
        head = ["from opreplay.replay.ops.aten.table import EQUIVALENTS", ""]
        head += [f"equivalent = EQUIVALENTS[{op.called!r}].load()  # of the CPU"]
        calling = f"equivalent({given})"
    elif has_stand_in and op.resolved_by != "jit":
        head = ["from opreplay.replay.ops.register import stand_in_of", "", f"reference = stand_in_of({op.called!r})"]
        calling = f"reference({', '.join(f'{name}={name}' for name in names)})"
    body, docstring = (
        f"return {calling}",
        "Run the op instead of the implementation that opreplay would use: call your kernel here.",
    )
    if op.reason is not None:
        docstring = "Run the op, whose library is not installed: compute its results from these arguments."
        body = f"raise NotImplementedError({'compute ' + (op.schema or op.called)!r})"
    split = keyword_only.index(True) if by_schema and True in keyword_only else len(names)
    parameters = ", ".join([*names[:split], *["*"][: len(names) - split], *names[split:]])
    declared = f", schema={(op.schema or '')[(op.schema or '').index('(') :]!r}" if by_schema else ""
    declared += f", mutates={written!r}" if not by_schema and (written := _written(op)) else ""
    lines = [
        *head,
        "",
        "",
        f"@opreplay.register_executor({op.called!r}{declared}, override=True)",
        f"def {_function(op)}({parameters}):",
        f'    """{docstring}"""',
        f"    {body}",
        "",
        "",
        f"def test_{_function(op)}():",
        "    op = opreplay.op(CALL)",
        '    assert op.ir.resolved_by == "executor"',
        "    op()",
    ]
    return "\n".join(lines) + "\n"


def _names_torch(arg: ReplayArg) -> bool:
    """Check whether a value is a dtype, layout, memory format or device. An executor may get such a value as text."""
    return arg.type.removesuffix("?") in ("Device", "Layout", "ScalarType", "MemoryFormat")


def _of_torch(arg: ReplayArg) -> str:
    """Return the source text of an argument inside a call of torch."""
    return (
        f"getattr(torch, {arg.name}[6:]) if isinstance({arg.name}, str) else {arg.name}"
        if _names_torch(arg)
        else arg.name
    )


def _written(op: ReplayOp) -> tuple[str, ...]:
    """Return the names of the arguments that the op writes to, according to its schema."""
    marked = re.findall(r"Tensor\([^)]*!\s*[^)]*\)\??\s+(\w+)", op.schema or "")
    return tuple(name for name in marked if name in _identifiers(op))


def _initializer(op: ReplayOp, built_in: CustomInit | None) -> str:
    name = f"my_{_function(op)}"
    if built_in is not None:
        kind = type(built_in)
        base, lines = kind.__name__, f"from {kind.__module__} import {kind.__name__}\n\n\n"
        body = "        report = super().initialize(context)\n        # Change tensors here: context.need(NAME).\n"
        body += "        return report"
    else:
        base, lines = "opreplay.CustomInit", ""
        body = "\n".join([*_filling(op), f"        return {f'{name} filled it'!r}"])
    return f'''{lines}@opreplay.register_initializer
class {"".join(part.title() for part in name.split("_"))}({base}):
    """Values of the arguments: {", ".join(_tensor_names(op)) or "no tensors"}."""

    name = {name!r}
    op_patterns = ({op.called!r},)
    priority = 10

    def initialize(self, context):
{body}


def test_{_function(op)}():
    call = opreplay.op(CALL).prepare()
    assert call.initializer == {name!r}
    call()
'''


def _filling(op: ReplayOp) -> list[str]:
    """Return the source lines that fill each tensor.

    Integer tensors get indices that are valid in every other tensor. Floating-point tensors get normally distributed
    values.
    """
    sizes = [size for arg in op.args for meta in arg.tensors if meta is not None for size in meta.shape]
    high = max(1, min(sizes, default=1))
    lines: list[str] = []
    for arg, name in zip(op.args, _identifiers(op), strict=True):
        dtype = arg.tensors[0].dtype if len(arg.tensors) == 1 and arg.tensors[0] is not None else ""
        if arg.type.endswith("[]"):
            continue
        where = f"context.need({name!r})"
        if dtype in ("int32", "int64"):
            lines.append(f"        {where}.random_(0, {high}, generator=context.generator)")
        elif dtype in (*_FLOATS, "float64"):
            lines.append(f"        {where}.normal_(generator=context.generator)")
    return lines


def _estimator(op: ReplayOp) -> str:
    return f'''@opreplay.register_op_estimator({op.called!r})
def {_function(op)}_time(info, device):
    """Time to move every byte once: replace it with your formula. info.args are meta tensors, numbers and lists."""
    # {", ".join(_identifiers(op))} = info.args, then info.kwargs
    moved = info.get_memory_access_properties()
    seconds = (moved.memory_read_bytes + moved.memory_write_bytes) / device.memory_bandwidth_bytes_ps
    return opreplay.PerformanceModel.Result(execution_time_s=seconds + 3e-6)


def test_{_function(op)}_time():
    predicted = opreplay.op(CALL).simulate("910b3")
    assert predicted.by == "user estimator"
    assert predicted.time_us >= 3
'''


def _loadable(op: ReplayOp) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arguments that a kernel can load.

    Arguments that the op does not write to are preferred. Raises UsageError if the op has no loadable argument, or a
    result that a kernel cannot store.
    """
    shapes = {
        name: meta.shape
        for name, arg in zip(_identifiers(op), op.args, strict=True)
        for meta in arg.tensors
        if len(arg.tensors) == 1 and meta is not None and meta.dtype in _FLOATS and meta.shape and _is_contiguous(meta)
    }
    results = [meta.dtype for meta in op.outputs or () if meta is not None]
    if not shapes or (results and results[0] not in _FLOATS):
        what = "no contiguous floating tensor to load" if not shapes else f"a result of {results[0]}"
        raise UsageError(f"{op.name} has {what}", hint="Write the kernel as docs/tile.md describes.")
    passed_over = (*_written(op), *_TILE_NAMES)
    return {name: shape for name, shape in shapes.items() if name not in passed_over} or shapes


_TILE_NAMES = ("tile", "result", "n", "b")
"""Names that the generated kernel defines, so that they cannot be argument names."""


def _tile(op: ReplayOp) -> str:
    shapes = _loadable(op)
    operands, loads = list(shapes), ""
    formula = _TILE_FORMULAS.get(op.called.removeprefix("aten::").removesuffix("_"), "")
    taken = formula.count("{")
    if formula and taken <= len(operands) and len({shapes[name] for name in operands[:taken]}) == 1:
        operands = operands[:taken]
        in_torch = formula.replace("tile.silu", "torch.nn.functional.silu").replace("tile.", "torch.")
        expected = f"({in_torch.format(*(f'{name}.float()' for name in operands))}).to({operands[0]}.dtype)"
        loaded = (f"tile.load({name}.view(-1)[b]).float()" for name in operands)
        computed = f"({formula.format(*loaded)}).to(result.dtype)"
        what = f"as {op.called} does"
    else:
        expected, computed = f"torch.zeros_like({operands[0]})", "tile.zeros((b.size,)).to(result.dtype)"
        what = "zeros, a placeholder that reads and writes every byte once"
        loads = "".join(
            f"    for b in tile.blocks({name}.view(-1).shape[0], n):\n        tile.load({name}.view(-1)[b])\n"
            for name in operands
        )
    function, letters = _function(op), ", ".join(operands)
    return f'''import torch
from opreplay import tile


def reference({letters}):
    """Return what the kernel has to compute: now {what}."""
    return {expected}


def operands({", ".join(f"{name}=None" for name in _identifiers(op))}):
    """Return the kernel's arguments from the recorded ones."""
    return {{{", ".join(f"{name!r}: {name}" for name in operands)}}}


@tile.kernel({op.called!r}, reference=reference, arguments=operands)
def {function}({letters}, result: tile.Out, *, n=2048):
{loads}    for b in tile.blocks(result.view(-1).shape[0], n):
        tile.store(result.view(-1)[b], {computed})


def test_{function}():
    values = [torch.rand(3, 47) + 0.5 for _ in {tuple(operands)!r}]
    torch.testing.assert_close({function}(*values), reference(*values))
    predicted = opreplay.op(CALL).simulate("910b3")
    assert predicted.by == "tile program"
'''


def _is_contiguous(meta: TensorMeta) -> bool:
    steps = [prod(meta.shape[i + 1 :]) for i in range(len(meta.shape))]
    return meta.strides is None or all(
        size == 1 or stride == step for size, stride, step in zip(meta.shape, meta.strides, steps, strict=True)
    )


def _function(op: ReplayOp) -> str:
    return _safe(op.called.partition("::")[2])


def _overload(op: ReplayOp) -> str:
    overload = op.overload or "default"
    return f".{overload}" if _IDENTIFIER.fullmatch(overload) else ""


def _tensor_names(op: ReplayOp) -> list[str]:
    return [name for name, arg in zip(_identifiers(op), op.args, strict=True) if arg.tensors]


def _identifiers(op: ReplayOp) -> list[str]:
    """Return the names of the arguments. Raises UsageError for a name that is not a Python identifier."""
    names = [arg.name for arg in op.args]
    wrong = next((name for name in names if not _IDENTIFIER.fullmatch(name) or keyword.iskeyword(name)), None)
    if wrong is not None:
        raise UsageError(f"{op.name}: argument {wrong!r} is not a valid Python name", hint="Take another op.")
    return names


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
