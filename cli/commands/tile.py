# pyright: strict
"""`opreplay tile`: run tile kernels, and show their values, limits and times on simulated devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.options.shared import force_option, format_option, l2_option, soc_option
from opreplay.cli.options.types import Count, FileName

if TYPE_CHECKING:
    from opreplay.replay.results.records import L2State
    from opreplay.replay.tile.study import Study


@click.command("tile", short_help="Check and predict kernels written in tiles.")
@click.argument("file", metavar="FILE|MODULE")
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="TEXT",
    help='A kernel with its arguments: "rms_norm x=bf16[4096,1024] w=bf16[1024] eps=1e-5". Repeatable.',
)
@click.option(
    "--shapes",
    multiple=True,
    metavar="N=...",
    help="Values of a size used in cases such as x=bf16[n,1024]: n=1,47,128 or n=2^7..2^14. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=...",
    help="Values of a setting, e.g. rows=1,2,4: all combinations are tried and shown, best first. Repeatable.",
)
@click.option("--tune", is_flag=True, help="Try combinations of the settings and show the best first.")
@click.option("--cores", type=Count(min=1), metavar="N", help="Use at most N cores.")
@click.option("--every", is_flag=True, help="Simulate every loop iteration, including identical ones.")
@click.option("--no-values", is_flag=True, help="Only predict: do not compute values.")
@click.option("--lines", is_flag=True, help="Show the busy time of each source line, by pipe.")
@click.option(
    "--measured",
    metavar="TIMES.csv",
    help=("Measured times (columns program, soc, shape, tiling, time_us) for comparing and calibrating predictions."),
)
@click.option(
    "--inputs",
    type=FileName(),
    metavar="FILE",
    help="A .safetensors file with tensors named like arguments: the input values of cases.",
)
@click.option("--emit", type=click.Choice(["triton"]), help="Write the kernels as source code to --output instead.")
@click.option("--output", "-o", metavar="FILE.py", help="Output file of --emit.")
@click.option(
    "--timeline", metavar="FILE.json", help="Write the pipe activity of one core in the first case, for Perfetto."
)
@soc_option
@l2_option("cold")
@format_option("table", "json", "html")
@force_option
def command(
    file: str,
    cases: tuple[str, ...],
    shapes: tuple[str, ...],
    settings: tuple[str, ...],
    tune: bool,
    cores: int | None,
    every: bool,
    no_values: bool,
    lines: bool,
    measured: str | None,
    inputs: str | None,
    emit: str | None,
    output: str | None,
    timeline: str | None,
    soc: tuple[str, ...],
    l2: L2State,
    format_: str,
    force: bool,
) -> int:
    """Run the kernels of FILE, Python functions with @tile.kernel: compare their values with their references, on the
    given cases and on a default set of small and odd shapes in each dtype, and predict the cases on simulated devices.

    If a kernel breaks a limit, the line that does is printed, and the command exits with 1.
    """
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import CasesProgress
    from opreplay.replay.ascend.simulate.devices import load_socs
    from opreplay.replay.ascend.simulate.op import state_of
    from opreplay.replay.report import tile_programs
    from opreplay.replay.tile.study import KEPT_SPANS, Wanted, load_programs, study

    if emit is not None or output is not None:
        return write_kernels(file, cases, emit, output, soc[0], values=not no_values, force=force)
    if timeline is not None:
        check_timeline(Path(timeline), force=force)
    wanted = Wanted(
        cases=cases,
        shapes=shapes,
        settings=settings,
        tune=tune,
        values=not no_values,
        state=state_of(l2),
        cores=cores,
        every=every,
        keep=KEPT_SPANS if timeline is not None else 0,
        measured=None if measured is None else Path(measured),
        inputs=None if inputs is None else _tensors_of(inputs),
    )
    programs, devices = load_programs(file), load_socs(soc)
    with CasesProgress() as on_step:
        result = study(programs, devices, wanted, on_step)
    if timeline is not None:
        write_timeline(result, Path(timeline), force=force)
    console.show_view(tile_programs.view(result, lines=lines), format_)
    # What does not fit in a sweep is an answer, as long as something does.
    is_broken = all if tune or settings else any
    return int(is_broken(case.failed for case in result.results))


def write_kernels(
    file: str, cases: tuple[str, ...], emit: str | None, output: str | None, soc: str, *, values: bool, force: bool
) -> int:
    """Write the kernels of all programs to a file.

    Returns exit code 1 if a program's kernels cannot be written, 0 otherwise. With `values`, only kernels with correct
    values are written. Raises UsageError for invalid flags.
    """
    from opreplay.cli.outputs import check_writable, write_file
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import CasesProgress
    from opreplay.replay.ascend.simulate.devices import load_socs
    from opreplay.replay.tile.cases import expand
    from opreplay.replay.tile.emit.checked import emit_right
    from opreplay.replay.tile.emit.triton import emit as emitted
    from opreplay.replay.tile.study import load_programs
    from opreplay.traces.errors import UsageError

    if emit is None or output is None or not output.endswith(".py"):
        raise UsageError(
            "--emit and --output must be given together", hint="Write --emit triton --output kernels_triton.py."
        )
    check_writable(Path(output), force=force)
    programs = load_programs(file)
    (device,) = load_socs((soc,)).values()
    listed = expand(cases, programs, ())
    with CasesProgress() as on_step:
        result = emit_right(programs, listed, device, on_step) if values else emitted(programs, listed)
    if result.programs:
        write_file(Path(output), result.text, force=force)
    for refusal in result.refused:
        console.show_line(str(refusal))
    console.show_line(f"wrote kernels of {len(result.programs)} of {len(programs)} programs to {output}")
    return int(bool(result.refused))


def _tensors_of(path: str) -> dict[str, Any]:
    """Return the tensors of a .safetensors file by name. Raises FormatError for an invalid file."""
    from opreplay.initializers.supplied.safetensors import SafetensorsFile

    file = SafetensorsFile(path)
    return {name: file.tensor(name) for name in file.tensors}


def check_timeline(path: Path, *, force: bool) -> None:
    """Raise UsageError for a timeline file that does not end in .json or may not be written."""
    from opreplay.cli.outputs import check_writable
    from opreplay.traces.errors import UsageError

    if path.suffix.lower() != ".json":
        raise UsageError(f"no timeline format for the suffix of {path.name}", hint="Use the suffix .json.")
    check_writable(path, force=force)


def write_timeline(result: Study, path: Path, *, force: bool) -> None:
    """Write the timeline of the first case that has a time and no failure. Raises UsageError if there is none."""
    from opreplay.cli.outputs import write_file
    from opreplay.cli.terminal import console
    from opreplay.replay.report.tile_programs import timeline
    from opreplay.traces.errors import UsageError

    case = next((case for case in result.results if case.time is not None and not case.failed), None)
    if case is None:
        raise UsageError("no timeline written, because no case fits the device", hint="The errors above say why.")
    write_file(path, console.json_text(timeline(case)), force=force)
