# pyright: strict
"""`opreplay op`: measure and predict calls, written as in reports, for several sizes and without a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options import shared
from opreplay.cli.options.measuring import lock_devices, measuring_options, quick_option, quick_times
from opreplay.cli.options.settings import Command

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.results.records import L2State


@click.command("op", cls=Command, short_help="Measure and predict ops without a trace.")
@click.argument("calls", metavar="[CALL]...", nargs=-1)
@click.option(
    "--file",
    "--from",
    "files",
    multiple=True,
    metavar="FILE",
    help="Also run the calls in FILE: one per line, or a BackendBench op trace. Repeatable.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=SIZES",
    help=(
        "Values of a size used in calls: n=1,47,4k, n=2^7..2^14 or n=64..512:64. Several sizes (n=1,4 k=1,8) or "
        "repeated options give all combinations."
    ),
)
@click.option("--measure/--no-measure", default=True, show_default=True, help="Run the calls here, or only predict.")
@shared.device_option
@shared.soc_option
@shared.l2_option(None)
@shared.plugin_option
@shared.allow_import_option
@quick_option("20 ms for each call, unless op_time is set")
@measuring_options
@shared.init_arg_option
@shared.format_option("table", "json", "csv")
@click.option(
    "--output", "-o", multiple=True, metavar="FILE", help="Also write .json, .csv or .html (with a curve). Repeatable."
)
@shared.force_option
@shared.cache_option
def command(
    calls: tuple[str, ...],
    files: tuple[str, ...],
    vary: tuple[str, ...],
    measure: bool,
    device: str,
    soc: tuple[str, ...],
    l2: L2State | None,
    plugin: tuple[str, ...],
    allow_import: tuple[tuple[str, str], ...],
    quick: bool,
    measuring: RunOptions,
    init_arg: tuple[str, ...],
    format_: str,
    output: tuple[str, ...],
    force: bool,
    no_cache: bool,
) -> int:
    """Measure each CALL on this machine and predict it on a simulated Ascend NPU, one row per size.

    A CALL is written as reports print it: 'aten::mm(bf16[4096,1024], bf16[1024,n])'. Tensors are a type and sizes, with
    strides in braces if they are not contiguous, f32[4,8]{1,4}; then numbers, True, None, lists, texts in quotes,
    torch.bfloat16, and arguments by name. Sizes may be names, or sums of products of names such as n//2. Tensors hold
    random values, like those of a trace's ops. A call that cannot run here, such as one of torch_npu, is still
    predicted, and a note says why it was not measured. Exits with 1 if a call was not measured or not predicted; with
    --no-measure, only predictions count.
    """
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.setup import finish_predictions, open_job, prepare
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import RunProgress
    from opreplay.replay.job.cases import Calls, cases_of
    from opreplay.replay.job.predicting import Faults
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.plan.inputs import BACKENDBENCH, plan_dialect
    from opreplay.replay.report import sweep
    from opreplay.replay.resolve.policy import named_modules
    from opreplay.replay.resolve.written.backendbench import written_calls
    from opreplay.replay.resolve.written.sweep import calls_of_file, over_sizes, sizes_among
    from opreplay.traces.errors import UsageError

    varied, texts = sizes_among(vary, calls)
    refused = False
    for file in files:
        if file != "-" and plan_dialect(file) is BACKENDBENCH:
            of_file, uncalled = written_calls(file)
            refused = refused or bool(uncalled)
            for why, count in uncalled.items():
                console.narrate(f"{file}: left out: {count} × {why}")
        else:
            of_file = calls_of_file(file)
        texts += of_file
    if not texts:
        raise UsageError("no call is given", hint="Write a call: opreplay op 'aten::mm(f32[64,32], f32[32,8])'.")
    check_outputs(output, (".json", ".csv", ".html"), force=force)
    settings = Settings.of(
        quick_times(measuring) if quick else measuring,
        device=device,
        allow_imports=named_modules(allow_import),
        plugins=plugin,
        init_args=init_arg,
        l2=l2,
        keep=not no_cache,
    )
    source = Calls(over_sizes(texts, varied), skip_invalid=bool(files))
    job = open_job(source, None, settings, soc)
    prepare(job, plugin)
    faults = Faults()
    if measure:
        with lock_devices([device], shared=settings.shared_device), RunProgress() as show_progress:
            cases = cases_of(job, faults, measure=True, consumers=[show_progress])
    else:
        cases = cases_of(job, faults)
    finish_predictions(job, unused=False)
    for text, error in source.invalid.items():
        console.narrate(f"left out: {text}: {error.problem}")
    refused = refused or bool(source.invalid)
    view = sweep.view(cases)
    write_view(view, output, force=force)
    console.show_view(view, format_)
    faults.conclude()
    return ExitCode.OK if cases.complete and not refused else ExitCode.INCOMPLETE
