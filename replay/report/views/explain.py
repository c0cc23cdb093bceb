# pyright: strict
"""Explain one op of a plan: arguments by name, how it was resolved, and its time on each simulated device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from opreplay.replay.ascend import Explanation
from opreplay.replay.ascend.cost.predict import HOST_COPY
from opreplay.replay.ascend.simulate.op import KernelExplanation
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.describe import describe_inputs, schema_text, shorter_float
from opreplay.replay.ir.model import RecordedKernel, ReplayArg, ReplayOp
from opreplay.replay.ir.notation import call_text
from opreplay.replay.ir.sizes import need_of, readable
from opreplay.replay.report.snippet import snippet
from opreplay.replay.report.sweep import MEASURED_OF
from opreplay.replay.report.table import Column, Fact, Table, facts_grid, terminal
from opreplay.replay.report.text import DASH, plural, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.report.views.meta import STYLES
from opreplay.replay.resolve.defining_files import registered_by
from opreplay.replay.results.records import OpResult
from opreplay.traces.model import TensorMeta, contiguous_strides

HOW: dict[str, str] = {
    "jit": "found in the JIT operator registry",
    "torch.ops": "found in torch.ops, where torch.library put it",
    "import": "found after an allowed import",
    "python function": "a Python function without a schema, called by position",
    "equivalent": "replayed through a portable equivalent",
    "reference": "replayed by opreplay's reference implementation, because the vendor library is not installed",
    "executor": "run by a user's executor",
}
"""Resolution method → text on how the op was found."""
SHARES = (
    "percentages: contribution of each pipe to the time, not its busy time, because pipes overlap and the longest "
    "hides most of the others"
)
KERNELS_SHOWN = 3


def view(op: ReplayOp, result: OpResult, explanations: Mapping[str, Explanation]) -> View:
    """Return an explained op, under its name and inputs."""
    return View(
        lines=[f"{safe(op.name)}  {safe(describe_inputs(op))}"],
        render=lambda width: render(op, result, explanations),
        facts=lambda: facts(op, result, explanations),
    )


def render(op: ReplayOp, result: OpResult, explanations: Mapping[str, Explanation]) -> RenderableType:
    """Render sections: the op, its arguments, what ran in the trace, and each simulated device."""
    parts: list[RenderableType] = [
        Text.assemble((safe(op.name), "bold"), f"  ({op.id})"),
        facts_grid(_overview(op, result)),
    ]
    if op.args:
        parts += [Text(), Text("Arguments", style="bold"), *terminal(_arguments(op))[1:]]
    for explanation in explanations.values():
        parts += [Text(), *_device(explanation)]
    return Group(*parts)


def _crosses_bus(explanations: Mapping[str, Explanation]) -> bool:
    """Check whether the op is explained as a copy between host and device, which the text of a call cannot express."""
    return any(kernel.family == HOST_COPY.name for each in explanations.values() for kernel in each.kernels)


def code_lines(op: ReplayOp, explanations: Mapping[str, Explanation]) -> list[str]:
    """Return the call as an argument of `opreplay op` and as plain PyTorch, in lines that must not be wrapped.

    Return [] if neither is known.
    """
    written = ["", "To measure and predict only this op, over sizes:", "", f"opreplay op {shlex.quote(call_text(op))}"]
    if _crosses_bus(explanations):
        written = ["", "No command: `opreplay op` would treat this host-device copy as a copy on the device."]
    lines = snippet(op).splitlines()
    as_torch = ["", "As PyTorch (values are placeholders):", "", *map(safe, lines)] if lines else []
    return [*([safe(line) for line in written] if op.reason is None else []), *as_torch]


def facts(op: ReplayOp, result: OpResult, explanations: Mapping[str, Explanation]) -> dict[str, Any]:
    """Return the explanation as JSON-safe values."""
    return {
        "snippet": snippet(op) or None,
        "call": call_text(op) if op.reason is None and not _crosses_bus(explanations) else None,
        "op": msgspec.to_builtins(op),
        "replayable": result.status == "replayed",
        "reason": result.reason and str(result.reason),
        "meta": result.meta,
        "bytes": need_of(op).total,
        "recorded_share": result.recorded_share,
        "simulated": {name: msgspec.to_builtins(explanation) for name, explanation in explanations.items()},
    }


def _resolution(op: ReplayOp, result: OpResult) -> Fact:
    """Return how the op is replayed, or why it is not."""
    if result.status != "replayed":
        return "not replayed", str(result.reason or ""), "yellow"
    how, origin = HOW.get(op.resolved_by or "", "not resolved"), registered_by(op)
    return "resolved", how + (f" by {origin}" if origin else "") + (f": {op.via}" if op.via else ""), ""


def _overview(op: ReplayOp, result: OpResult) -> list[Fact]:
    facts: list[Fact] = []
    share = f"{share_text(result.recorded_share)} of the time"
    times = f"{time_text(result.recorded_device_us)} on the device, {time_text(result.recorded_host_us)} on the host"
    timed = op.recorded.host_us_total > 0 or op.recorded.device_us_total > 0
    facts.append(("recorded", f"{op.count:,} × {times}; {share}" if timed else f"{op.count:,} ×, no times", ""))
    facts += [("", line, "dim") for line in _recorded_kernels(op.recorded.kernels)]
    facts.append(_resolution(op, result))
    if result.meta is not None:
        facts.append(("on meta tensors", str(result.meta), STYLES.get(result.meta.status, "")))
    if op.schema:
        facts.append(("schema", schema_text(op.schema), ""))
    need = need_of(op)
    about = "" if need.outputs_known else "about "
    facts.append(("memory", f"{readable(need.inputs)} inputs, {about}{readable(need.outputs)} outputs", ""))
    return facts


def _recorded_kernels(kernels: Sequence[RecordedKernel]) -> list[str]:
    lines: list[str] = []
    for kernel in kernels[:KERNELS_SHOWN]:
        name = f"{kernel.type} ({kernel.name})" if kernel.type else kernel.name
        lines.append(f"{kernel.count:,} × {time_text(kernel.total_us / max(kernel.count, 1))}  {name}")
    rest = len(kernels) - len(lines)
    return [*lines, f"and {plural(rest, 'more kernel')}"] if rest else lines


_Note = tuple["ReplayArg | None", str, str]
"""A row of the arguments table: (argument, name, note); the argument is None if the op does not have it."""


def _arguments(op: ReplayOp) -> Table[_Note]:
    sharing = aliasing.sharing(op.args)

    def notes(arg: ReplayArg) -> str:
        notes = [a.what for a in op.assumptions if a.argument == arg.name]
        if arg.name in sharing:
            others = ", ".join(name for name in sharing[arg.name] if name != arg.name) or "itself"
            notes.append(f"shares memory with {others}")
        return "; ".join([*notes, *(["written to"] if arg.mutated else [])])

    known = {arg.name for arg in op.args}
    rows: list[_Note] = [(arg, arg.name, notes(arg)) for arg in op.args]
    rows += [
        (None, assumption.argument, assumption.what)
        for assumption in op.assumptions
        if assumption.argument not in known
    ]
    columns = [
        Column[_Note]("name", lambda row: row[1]),
        Column[_Note]("type", lambda row: row[0] and row[0].type, style="dim"),
        Column[_Note]("value", lambda row: row[0] and argument_text(row[0]), form="fold"),
        Column[_Note]("note", lambda row: row[2], form="fold", style="yellow"),
    ]
    return Table("Arguments", columns, rows)


def argument_text(arg: ReplayArg) -> str:
    """Return the value of one argument as text: tensors as "bfloat16[2,3] strides [3,1]", scalars as recorded."""
    if arg.tensors:
        return ", ".join("None" if meta is None else tensor_text(meta) for meta in arg.tensors)
    if arg.value is None:
        return DASH
    return str(list(arg.value)) if isinstance(arg.value, tuple) else shorter_float(str(arg.value))


def tensor_text(meta: TensorMeta) -> str:
    """Return "bfloat16[2,3] strides [1,2] offset 8", with strides if they are known and not contiguous."""
    text = f"{meta.dtype}[{','.join(map(str, meta.shape))}]"
    if meta.strides is not None and meta.strides != contiguous_strides(meta.shape):
        text += f" strides [{','.join(map(str, meta.strides))}]"
    return text + (f" offset {meta.storage_offset}" if meta.storage_offset else "")


def _device(explanation: Explanation) -> list[RenderableType]:
    """Render one simulated device: the total, the kernels with the terms of their times, and notes."""
    total = explanation.simulated
    far = "; extrapolated" if total.extrapolated else ""
    far += f"; no unit multiplies {safe(total.no_path)}" if total.no_path else ""
    far += f"; adjusted by your measurements of {MEASURED_OF[total.measured]}" if total.measured else ""
    head = Text.assemble(
        (safe(explanation.device), "bold"),
        (f" (version {safe(explanation.device_version)})", "dim"),
        "  ",
        (time_text(total.time_us), "cyan"),
        f", 80 % band {time_text(total.low_us)} to {time_text(total.high_us)}; ",
        f"bound by {total.bound}; {total.confidence}{far}; L2 {total.l2}",
    )
    lines = [_kernel(kernel) for kernel in explanation.kernels]
    if any(len(kernel.prediction.terms_us) > 1 for kernel in explanation.kernels):
        lines.append(Text(f"· {SHARES}", style="dim"))
    if not explanation.kernels:
        lines.append(Text("no kernel, because the op is a view", style="dim"))
    lines += [Text(f"· {safe(note)}", style="dim") for note in explanation.notes]
    return [head, *(Padding(line, (0, 0, 0, 2)) for line in lines)]


def _kernel(kernel: KernelExplanation) -> Text:
    """Return a kernel with the terms of its time (largest first), its shapes and what bounds it."""
    prediction = kernel.prediction
    terms = sorted(prediction.terms_us.items(), key=lambda term: -term[1]) if prediction.time_us > 0 else ()
    shares = ", ".join(f"{safe(name)} {share_text(us / prediction.time_us)}" for name, us in terms)
    times = f"{kernel.count} × " if kernel.count > 1 else ""
    samples = f", {kernel.samples} measured kernels" if kernel.samples else ""
    factor = prediction.nearby_factor
    nearby = f"; × {factor:.2f} from similar kernels" if factor and abs(factor - 1) >= 0.005 else ""
    path = f" ({safe(prediction.slow_path)})" if prediction.slow_path else ""
    known = f"{prediction.confidence}{', extrapolated' if prediction.extrapolated else ''}"
    return Text.assemble(
        (safe(kernel.type), "bold"),
        f"  {times}{time_text(prediction.time_us)}{f': {shares}' if shares else ''}\n",
        (f"{', '.join(kernel.inputs)} → {', '.join(kernel.outputs)}\n", "dim"),
        (f"bound by {prediction.bound}{path}; {known} (family {kernel.family}{samples}{nearby})", "dim"),
        *((f"\n{name} = {value}", "dim") for name, value in kernel.attrs.items()),
        overflow="fold",
    )
