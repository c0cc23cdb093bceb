# pyright: strict
"""`opreplay check`: test whether an op is correct and fast. The exit code is 1 if the op fails a required point."""

from __future__ import annotations

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options import shared
from opreplay.cli.options.settings import Command, setting
from opreplay.cli.options.types import Count, Duration

REQUIRE = "schema, shape inference, correctness, bad input"


@click.command("check", cls=Command, short_help="Test an op's correctness and speed against a reference.")
@click.argument("op", metavar="OP", required=False)
@click.option(
    "--against",
    "--reference",
    metavar="OP|FILE.py:FUNCTION|gradient:OP|stand-in|decomposition",
    help=(
        "The reference for results and times: an op (aten::add), torch.add, a function of yours, "
        "autograd of a forward op (gradient:aten::silu), opreplay's reference implementation "
        "(stand-in), or torch's decomposition.  [default: the op itself in float64]"
    ),
)
@click.option(
    "--stand-ins",
    is_flag=True,
    help="Check stand-ins against themselves in float64: those of opreplay for vendor ops that match the glob OP.",
)
@setting(
    "--library",
    metavar="NAME",
    help=("With --stand-ins: compare the ops of this installed library (vllm) with the reference implementations."),
)
@click.option("--trace", metavar="TRACE", help="Try the calls of OP that this trace or plan recorded.")
@click.option(
    "--shapes",
    multiple=True,
    metavar="CALL",
    help="Try this call: 4096x4096 for every tensor, 'f32[4,8], f32[8]', or 'mylib::op(f32[4,8], 0.5)'. Repeatable.",
)
@shared.plugin_option
@shared.device_option
@shared.soc_option
@shared.seed_option
@setting(
    "--points", metavar="POINTS", default="all", show_default=True, help="Check only these points, comma-separated."
)
@click.option(
    "--require",
    metavar="POINTS",
    help=(
        "Exit with 1 if one of these points fails, is missing or was not reached: all, none, or "
        f"comma-separated names.  [default: {REQUIRE}; any of `points` that fails]"
    ),
)
@setting("--threads", type=Count(min=1), metavar="N", help="Number of torch threads on the CPU.")
@setting(
    "--speed-time",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Maximum time to spend on comparing times; less if the result is certain earlier.",
)
@setting(
    "--case-limit",
    type=Duration(),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="A case that takes longer counts as a hang.",
)
@shared.page_option
@shared.force_option
@shared.format_option("table", "markdown", "json")
def command(
    op: str | None,
    against: str | None,
    stand_ins: bool,
    library: str | None,
    trace: str | None,
    shapes: tuple[str, ...],
    plugin: tuple[str, ...],
    device: str,
    soc: tuple[str, ...],
    seed: int,
    points: str,
    require: str | None,
    threads: int | None,
    speed_time: float,
    case_limit: float,
    output: str | None,
    force: bool,
    format_: str,
) -> int:
    """Test an op against the requirements for ops in PyTorch, and print a verdict on each point.

    OP is namespace::op or namespace::op.overload, or FILE.py:FUNCTION. Its calls come from --trace or --shapes, or are
    generated from the schema; each is varied: sizes, strides, dtypes, broadcasts, bad input. Cases run in a separate
    process: a crash or a hang affects only its case.
    """
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import CheckProgress
    from opreplay.replay.check.model import Interrupted, parse_points
    from opreplay.replay.plugins import plugin_files
    from opreplay.replay.report import checked
    from opreplay.replay.session.checking import check
    from opreplay.traces.errors import UsageError

    if stand_ins:
        return _stand_ins(op or "*", library=library, device=device, seed=seed, format_=format_)
    if op is None or library is not None:
        raise UsageError(
            "no op is given" if op is None else "--set library needs --stand-ins",
            hint="Name one as mylib::my_op, or check opreplay's stand-ins with --stand-ins.",
        )
    check_outputs([output], force=force)
    required = None if require is None else parse_points(require)
    wanted = parse_points(points)
    try:
        with CheckProgress() as tell:
            result = check(
                op,
                against=against,
                trace=trace,
                shapes=shapes,
                points=wanted,
                plugins=plugin_files(plugin),
                device=device,
                soc=soc,
                seed=seed,
                threads=threads,
                speed_time_s=speed_time,
                limit_s=case_limit,
                tell=tell,
            )
    except Interrupted as early:
        result = early.partial
    failed = result.failed(required)
    view = checked.view(result, failed)
    write_view(view, [output], force=force)
    console.show_view(view, format_)
    for point in failed:
        console.narrate(f"opreplay: {point.point}: {point.verdict}")
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.INCOMPLETE if failed else ExitCode.OK


def _stand_ins(pattern: str, *, library: str | None, device: str, seed: int, format_: str) -> int:
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import CheckProgress
    from opreplay.replay.check.fidelity import check_stand_ins
    from opreplay.replay.report import checked

    with CheckProgress() as tell:
        result = check_stand_ins(pattern, library=library, device=device, seed=seed, tell=tell)
    console.show_view(checked.fidelity_view(result), format_)
    return ExitCode.INCOMPLETE if result.failed else ExitCode.OK
