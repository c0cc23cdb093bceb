# pyright: strict
"""`opreplay export`: write chosen ops as a bundle that needs only torch, or as a file of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options import shared
from opreplay.cli.options.settings import Command, is_given, setting
from opreplay.cli.options.source import Source, source_options
from opreplay.cli.options.types import ByteSize, Duration, SocName

if TYPE_CHECKING:
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.selection import Selection
    from opreplay.traces import Trace


FOLDERS = ("bundle", "flashinfer-trace")
"""Formats that are written as folders, with inputs made by initializers."""
MEASURE_S = 300.0
"""Default of --budget: the maximum run time in seconds of the script of --format measure."""
MEASURED_SHOWN = 10
"""Maximum number of measured calls listed after `--format measure` has written its script."""


@click.command("export", cls=Command, short_help="Write ops as a script for torch, or for other tools.")
@source_options()
@click.option(
    "--format",
    "format_",
    type=click.Choice(["bundle", "backendbench", "tritonbench", "chakra", "tracelens", "flashinfer-trace", "measure"]),
    default="bundle",
    show_default=True,
    metavar="FORMAT",
    help=(
        "bundle: a script with its ops. backendbench, tritonbench: calls with counts. chakra: a "
        "step for ASTRA-sim. tracelens: event_replay_ir of TraceLens. flashinfer-trace: "
        "definitions and workloads. measure: a script that measures the calls on which a "
        "prediction depends most."
    ),
)
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="DIR|FILE",
    help=(
        "Where to write: a new or empty folder for bundle and flashinfer-trace, a .zip for "
        "bundle, a file for other formats (.json, .txt; .et; .py)."
    ),
)
@shared.device_option
@shared.selection_options
@shared.plugin_option
@click.option("--with-plugins", is_flag=True, help="For bundle: include the --plugin files for the ops that they run.")
@click.option("--keep-names", is_flag=True, help="Keep the names of the trace, the device, kernels and private ops.")
@setting(
    "--max-op-memory",
    type=ByteSize(),
    metavar="SIZE",
    help=(
        "Leave out ops whose inputs must be generated here and need more memory than this.  [default: half of the free "
        "memory]"
    ),
)
@click.option(
    "--clock",
    type=SocName(),
    metavar="NAME|FILE",
    help="For chakra: use the times of this simulated device instead of recorded ones.",
)
@click.option(
    "--soc",
    type=SocName(),
    multiple=True,
    metavar="NAME|FILE",
    help="For measure: the one simulated device whose predictions are to be checked.",
)
@click.option(
    "--budget",
    type=Duration(),
    metavar="TIME",
    help="For measure: how long the script may run.  [default: 5min]",
)
@shared.captured_fused_option
@shared.init_arg_option
@shared.force_option
def command(
    source: Source,
    format_: str,
    output: str,
    device: str,
    selection: Selection,
    plugin: tuple[str, ...],
    with_plugins: bool,
    keep_names: bool,
    max_op_memory: int | None,
    clock: str | None,
    soc: tuple[str, ...],
    budget: float | None,
    fused: Fused | None,
    init_arg: tuple[str, ...],
    force: bool,
) -> None:
    """Write the ops of TRACE as a bundle: ops.json, a script replay.py that needs only torch, and a README. With
    --format, write a file for another tool, or a script that measures on an NPU the calls that a prediction of the step
    depends on most (measure).

    The bundle does not name the model, its files, machine or kernels unless --keep-names is given. Ops that a script
    cannot replay with torch alone are left out and listed.
    """
    from opreplay.cli.setup import apply_fusion, use_plugins
    from opreplay.cli.terminal import console
    from opreplay.replay.job.job import Job
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.plan.collectives.in_plan import naming_collectives
    from opreplay.replay.report.run.facts import unmatched_notes
    from opreplay.traces.errors import UsageError

    bundle = format_ == "bundle"
    of_formats: dict[str, tuple[str, ...] | None] = {
        "--keep-names": ("bundle",) if keep_names else None,
        "--with-plugins": ("bundle",) if with_plugins else None,
        "--set max_op_memory": (*FOLDERS, "measure") if max_op_memory is not None else None,
        "--set init_arg": (*FOLDERS, "measure") if init_arg else None,
        "--clock": ("chakra",) if clock is not None else None,
        "--soc": ("measure",) if is_given("soc") else None,
        "--budget": ("measure",) if budget is not None else None,
        "--fused": ("measure",) if fused is not None else None,
    }
    wrong = [name for name, only in of_formats.items() if only and format_ not in only]
    if wrong:
        raise UsageError(f"{wrong[0]} has no effect with --format {format_}", hint="Leave it out.")
    if format_ == "measure" and len(soc) != 1:
        raise UsageError(
            f"--format measure needs exactly one simulated device, not {len(soc)}", hint="Give --soc once."
        )
    _check_target(output, format_, force=force)
    plugin_names = use_plugins(plugin)
    read = apply_fusion(source.open(activity=format_ == "chakra"), fused)
    plan = Job(read, selection, Settings(device=device, order=format_ in ("chakra", "measure"))).plan
    for note in unmatched_notes(plan.unmatched):
        console.narrate(note)
    if format_ == "chakra":
        plan = naming_collectives(plan, read)
    if bundle:
        _write_bundle(
            plan,
            selection,
            Path(output),
            plugins=plugin_names,
            with_plugins=with_plugins,
            keep_names=keep_names,
            max_op_memory=max_op_memory,
            init_arg=init_arg,
            force=force,
        )
    elif format_ == "measure":
        _write_measure(
            plan, Path(output), soc[0], budget or MEASURE_S, max_op_memory, init_arg, plugin_names, force=force
        )
    elif format_ == "chakra":
        _write_chakra(
            plan, None if selection.narrows or selection.select != "owner" else read, Path(output), clock, force=force
        )
    elif format_ == "flashinfer-trace":
        _write_flashinfer_trace(plan, Path(output), max_op_memory, init_arg, plugin_names)
    else:
        _write_inputs(plan, output, format_, force=force)


def _check_target(output: str, format_: str, *, force: bool) -> None:
    from opreplay.cli.outputs import check_writable
    from opreplay.replay.export import check_target
    from opreplay.traces.errors import UsageError

    if format_ in FOLDERS:
        if format_ != "bundle" and output.lower().endswith(".zip"):
            raise UsageError(f"--format {format_} writes a folder, not a file: {output}", hint="Name a folder.")
        check_target(Path(output), force=force)
        return
    suffixes = {
        "backendbench": (".txt",),
        "tritonbench": (".json", ".txt"),
        "chakra": (".et",),
        "tracelens": (".json",),
        "measure": (".py",),
    }[format_]
    if Path(output).suffix.lower() not in suffixes:
        raise UsageError(f"{output} has no suffix of --format {format_}", hint=f"Name a file {' or '.join(suffixes)}.")
    check_writable(Path(output), force=force)


def _write_bundle(
    plan: ReplayPlan,
    selection: Selection,
    output: Path,
    *,
    plugins: tuple[str, ...],
    with_plugins: bool,
    keep_names: bool,
    max_op_memory: int | None,
    init_arg: tuple[str, ...],
    force: bool,
) -> None:
    from opreplay.cli.setup import refuse_unused_initializers
    from opreplay.cli.terminal import console
    from opreplay.replay.export import make_bundle, write_bundle
    from opreplay.replay.export.files import left_out_lines
    from opreplay.replay.host.environment import default_op_bytes
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.resolve.policy import Policy
    from opreplay.traces.errors import UsageError

    registry = open_registry((), init_arg)
    bundle = make_bundle(
        plan,
        registry,
        policy=Policy(allow_imports=selection.allow_imports),
        memory_bytes=max_op_memory or default_op_bytes(),
        keep_names=keep_names,
        plugins=plugins if with_plugins else (),
    )
    if not bundle.plan.ops:
        raise UsageError(
            f"nothing to export: none of {len(plan.ops)} ops can be replayed by a script",
            hint="; ".join(left_out_lines(bundle, private=False)[:3]) or "The trace contains no ops.",
        )
    refuse_unused_initializers(registry, plan.ops, plugins, init_arg)
    write_bundle(bundle, output, force=force)
    left_out = len(bundle.left_out)
    console.show_line(f"exported {len(bundle.plan.ops)} of {len(plan.ops)} ops to {output} ({left_out} left out)")
    for line in left_out_lines(bundle, private=False):
        console.show_line(line)


def _write_chakra(
    plan: ReplayPlan, read: Trace | ReplayPlan | None, output: Path, wanted: str | None, *, force: bool
) -> None:
    """Write a Chakra trace: the step's graph if `read` has device work, otherwise the calls in sequence."""
    from opreplay.cli.outputs import write_bytes
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.step_residency import PlannedStep
    from opreplay.replay.export.chakra import chakra_trace
    from opreplay.replay.ops.work.expected import expected_contents
    from opreplay.replay.timeline.exported import chakra_of_step
    from opreplay.replay.timeline.timeline import timeline
    from opreplay.traces.model import Trace
    from opreplay.traces.names import plural

    planned = PlannedStep(plan, expected_contents())
    times: dict[str, float] | None = None
    clock, weak = "recorded", list[str]()
    devices: dict[str, DeviceProfile] = {}
    if wanted is not None:
        from opreplay.replay.ascend.simulate.devices import load_socs, simulate_plan

        devices = load_socs([wanted])
        (step,) = simulate_plan(planned, list(devices.values()))
        clock, times = step.device, {op.id: op.simulated.time_us for op in step.ops}
        unsure = sum(op.simulated.confidence == "uncalibrated" or op.simulated.extrapolated for op in step.ops)
        weak += [f"{unsure} of {len(step.ops)} ops have uncalibrated or extrapolated predictions"] if unsure else []
    if isinstance(read, Trace) and read.activity is not None and len(read.kernels):
        study = timeline(read, devices=list(devices.values()), planned=planned)
        trace = chakra_of_step(study, plan, clock=clock)
    else:
        trace = chakra_trace(plan, times, clock=clock)
    write_bytes(output, trace.data, force=force)
    console.show_line(
        f"exported {plural(trace.calls, 'call')} and {plural(trace.collectives, 'collective')} to {output}: "
        f"{trace.nodes} nodes, {clock} times"
    )
    for note in (*trace.notes, *weak):
        console.show_line(f"* {note}")


def _write_measure(
    plan: ReplayPlan,
    output: Path,
    soc: str,
    budget_s: float,
    max_op_memory: int | None,
    init_arg: tuple[str, ...],
    plugins: tuple[str, ...],
    *,
    force: bool,
) -> None:
    """Write a script that measures the calls that contribute most to the prediction's uncertainty, and list them."""
    from opreplay.cli.outputs import write_file
    from opreplay.cli.setup import refuse_unused_initializers
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.simulate.kit import make_kit
    from opreplay.replay.export.measure import left_out_lines
    from opreplay.replay.host.environment import default_op_bytes
    from opreplay.replay.ir.describe import describe_inputs
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.report.text import share_text

    registry = open_registry((), init_arg)
    kit = make_kit(
        plan,
        load_device(soc),
        ExpectedContents(registry),
        registry,
        budget_s=budget_s,
        memory_bytes=max_op_memory or default_op_bytes(),
    )
    refuse_unused_initializers(registry, plan.ops, plugins, init_arg)
    write_file(output, kit.text, force=force)
    console.show_line(
        f"exported {len(kit.calls)} of {kit.ops} ops to {output}: {share_text(kit.share)} of the variance of the "
        f"predicted total; measuring them takes about {kit.estimated_s:.0f} s"
    )
    for call in kit.calls[:MEASURED_SHOWN]:
        shown = f"{call.count} x {call.op.name} {describe_inputs(call.op)}"
        console.show_line(f"  {share_text(call.share):>7}  {shown}")
    for line in left_out_lines(kit.left_out):
        console.show_line(f"* {line}")
    console.show_line(f"next, on the NPU: python {output.name}")


def _write_flashinfer_trace(
    plan: ReplayPlan, folder: Path, max_op_memory: int | None, init_arg: tuple[str, ...], plugins: tuple[str, ...]
) -> None:
    from opreplay.cli.setup import refuse_unused_initializers
    from opreplay.cli.terminal import console
    from opreplay.replay.export.flashinfer_trace import flashinfer_trace, left_out_lines, write_flashinfer_trace
    from opreplay.replay.host.environment import default_op_bytes
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.traces.errors import UsageError

    registry = open_registry((), init_arg)
    exported = flashinfer_trace(plan, registry, memory_bytes=max_op_memory or default_op_bytes())
    if not exported.workloads:
        hint = "; ".join(left_out_lines(exported)[:3]) or "The trace contains no ops."
        raise UsageError(f"nothing to export: this format cannot express any of the {len(plan.ops)} ops", hint=hint)
    refuse_unused_initializers(registry, plan.ops, plugins, init_arg)
    write_flashinfer_trace(exported, folder)
    share = f", {100 * exported.covered_share:.1f} % of the device time of the ops" if exported.device_us else ""
    console.show_line(
        f"exported {exported.workloads} of {len(plan.ops)} ops to {folder}: {exported.definitions} definitions{share}"
    )
    if exported.without_reference:
        console.show_line(f"* without a reference: {', '.join(exported.without_reference)}")
    if exported.unstored:
        console.show_line(
            f"* random indices in {exported.unstored} workloads (real ones are too large, or could not be generated "
            "here)"
        )
    for line in left_out_lines(exported):
        console.show_line(line)


def _write_inputs(plan: ReplayPlan, output: str, format_: str, *, force: bool) -> None:
    from opreplay.cli.outputs import write_file
    from opreplay.cli.terminal import console
    from opreplay.traces.names import plural

    if format_ == "tracelens":
        from opreplay.replay.plan.tracelens import write_tracelens_ir

        left_out = write_tracelens_ir(plan, output, force=force)
        console.show_line(
            f"exported {len(plan.ops) - left_out} of {len(plan.ops)} ops to {output} ({left_out} left out)"
        )
        return
    from opreplay.replay.export.tritonbench import input_configs, json_text, log_text

    of_backendbench = format_ == "backendbench"
    configs = input_configs(plan, "[1, 4]" if of_backendbench else "stride=(1, 4)")
    left_out = sum(sum(names.values()) for names in configs.left_out.values())
    text = json_text(configs) if output.lower().endswith(".json") else log_text(configs)
    write_file(Path(output), text, force=force)
    console.show_line(f"exported {len(plan.ops) - left_out} of {len(plan.ops)} ops to {output} ({left_out} left out)")
    for reason, names in configs.left_out.items():
        if not of_backendbench:
            console.show_line(f"* {sum(names.values())} × {reason}")
            continue
        for name, count in names.items():
            console.narrate(f"* left out: {count} × {name}: {reason}")
    if of_backendbench and configs.shared_memory_ops:
        console.narrate(
            f"* the file does not record that tensors share memory: {plural(configs.shared_memory_ops, 'op')}"
        )
