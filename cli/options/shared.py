# pyright: strict
"""Option types and groups of options that several commands share. Commands get parsed values in the library's units."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opreplay.cli.options.settings import Named, Renamed, is_default, setting
from opreplay.cli.options.types import Assignments, Count, FileName, Share, SocName

if TYPE_CHECKING:
    from opreplay.traces.links.annotations import Phase

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


trace_argument = click.argument("trace", metavar="TRACE", type=FileName())
"""TRACE: a profile, a glob that matches one profile, or "-"."""


execution_trace_option = setting(
    "--execution-trace",
    flag_stays=True,
    type=FileName(),
    metavar="FILE",
    help="Take shapes missing in TRACE from this ExecutionTrace of the same run.",
)
"""--execution-trace: ExecutionTrace with the arguments of ops, for a trace recorded without shapes."""


execution_traces_option = setting(
    "--execution-trace",
    flag_stays=True,
    type=FileName(),
    multiple=True,
    metavar="FILE|GLOB|FOLDER",
    help=(
        "ExecutionTrace files that supply shapes missing in a trace. Each trace uses the file with the same name or "
        "rank. Repeatable."
    ),
)
"""--execution-trace for many traces; files are assigned to traces by file name and rank."""


kernel_details_option = setting(
    "--kernel-details",
    type=FileName(),
    metavar="FILE",
    help=("torch_npu's kernel table for TRACE.  [default: kernel_details.csv or op_summary*.csv next to it]"),
)
"""kernel_details: kernel table written by the NPU's profiler."""


notes_option = click.option("--notes", is_flag=True, help="Print all notes.")
"""--notes: print all notes on the numbers. By default, only notes that may change a decision are printed."""


all_option = click.option(
    "--all", "all_rows", is_flag=True, help="Print all rows, not only those with 95 % of the time."
)
"""--all: print every row of every table."""


cache_option = setting(
    "--no-cache",
    is_flag=True,
    help=(
        "Build the plan again and do not store it. By default it is cached in "
        "$XDG_CACHE_HOME/opreplay or ~/.cache/opreplay."
    ),
)
"""no_cache: neither reuse the stored plan of an earlier run nor store the plan."""


capture_option = setting(
    "--capture",
    type=FileName(),
    metavar="FILE|FOLDER",
    help=(
        "Profile of the capture of the CUDA or HIP graphs in TRACE, used to assign their kernels to ops.  [default: "
        "files next to it with capture in their name]"
    ),
)
"""capture: profile recorded while CUDA graphs were captured, used to assign the graphs' kernels to ops."""


process_option = setting(
    "--process",
    flag_stays=True,
    metavar="NAME",
    help=("Select one process of a TRACE merged from several processes, by its name in `inspect`."),
)
"""--process: name of the process to use in a trace merged from several."""


limit_option = setting(
    "--limit",
    type=Assignments(_NAMESPACE, re.compile(r"\S+"), "events=2000000000 or decompressed_bytes=128GiB"),
    multiple=True,
    metavar="NAME=VALUE",
    help="Raise a limit of the trace reader, named in its error. Repeatable.",
)
"""limit: raise the reader's limits, which protect against hostile files."""


allow_import_option = setting(
    "--allow-import",
    flag_stays=True,
    type=Assignments(_NAMESPACE, _MODULE, "myops=my_package.ops"),
    multiple=True,
    metavar="NS=MODULE",
    help=(
        "Import MODULE to find the ops of namespace NS; its functions also run ops without a schema. Repeatable, even "
        "for the same NS."
    ),
)
"""--allow-import: libraries that may be imported for their ops."""


def with_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Add options or arguments to a command, in the order in which --help shows them."""
    for option in reversed(options):
        command = option(command)
    return command


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options that select ops of the trace. The command receives them as `selection`, a `Selection`."""

    @wraps(command)
    def taking_selection(
        *,
        select: str,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        phase: Phase | None,
        top: int | None,
        min_share: float | None,
        op: tuple[str, ...],
        allow_import: tuple[tuple[str, str], ...],
        **others: Any,
    ) -> Any:
        from opreplay.replay.plan.selection import Selection, by_name_and_place
        from opreplay.replay.resolve.policy import named_modules

        by_name, by_place = by_name_and_place(include)
        selection = Selection(
            select=select,
            include=by_name,
            exclude=exclude,
            phase=phase,
            top=top,
            min_share=min_share,
            allow_imports=named_modules(allow_import),
            ops=(*op, *by_place),
        )
        return command(selection=selection, **others)

    options = [
        setting(
            "--select",
            flag_stays=True,
            type=click.Choice(["owner", "leaf", "top", "all"]),
            default="owner",
            show_default=True,
            help="Ops that own device time, innermost ops, outermost ops, or all.",
        ),
        click.option(
            "--include",
            cls=Named,
            former=["--op-filter"],
            multiple=True,
            metavar="GLOB|ID|#N",
            help=(
                "Take only ops with a matching name, e.g. 'aten::mm'; an id selects one op, #4 the fourth op after "
                "the other filters. Repeatable."
            ),
        ),
        click.option(
            "--exclude", multiple=True, metavar="GLOB", help="Leave out ops with a matching name. Repeatable."
        ),
        setting(
            "--phase",
            type=click.Choice(["prefill", "decode", "mixed"]),
            help=("Take only calls in iterations with this kind of batch: only prefill, only decode, or both."),
        ),
        click.option("--top", type=Count(min=1), metavar="N", help="Take the N ops with the most recorded time."),
        click.option("--op", multiple=True, metavar="ID|NAME|GLOB|#N", cls=Renamed, now="--include"),
        setting(
            "--min-share",
            type=Share(),
            metavar="SHARE",
            help="Leave out ops below this share of the recorded time, e.g. 0.1%.",
        ),
        allow_import_option,
    ]
    return with_options(taking_selection, options)


device_option = click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="DEVICE",
    help="Device to replay on: cpu, cuda, cuda:1, npu. There is no fallback.",
)
"""--device: device on which ops are resolved and run."""


soc_option = click.option(
    "--soc",
    type=SocName(),
    multiple=True,
    default=("910b3",),
    show_default=True,
    metavar="NAME|FILE",
    help="Simulated device, or a device file (.toml). Repeatable.",
)
"""--soc: the simulated devices."""


def cluster_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --cluster, which sets the simulated devices and their links. If it is given, `soc` has no default."""

    @wraps(command)
    def taking_cluster(*, cluster: str | None, soc: tuple[str, ...], **others: Any) -> Any:
        return command(soc=() if cluster is not None and is_default("soc") else soc, cluster=cluster, **others)

    return click.option(
        "--cluster",
        type=SocName(),
        metavar="SERVERSxDIESxSOC|FILE",
        help=(
            "Simulate a cluster, e.g. 2x8x910b3 or a file (.toml): its SoC replaces the default "
            "--soc, and collectives use its links."
        ),
    )(taking_cluster)


def fused_option(help_: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --fused: replace calls in a captured plan by the fused kernels that servers run."""
    return click.option("--fused", type=click.Choice(["ascend", "none"]), help=help_)


captured_fused_option = fused_option(
    "For a captured plan: fuse calls as `capture --fused` does.  [default: ascend for inference of hf:CONFIG]"
)
"""--fused for commands that accept a captured plan."""


def l2_option(default: str | None, *, otherwise: str = "same cache state as --cache") -> Callable[[Command], Command]:
    """Return a decorator that adds --l2.

    The option sets what a simulated device's caches contain when an op starts. Without a `default`, `otherwise` is the
    help text on what happens if the option is not given.
    """
    return setting(
        "--l2",
        flag_stays=True,
        type=click.Choice(["cold", "loop", "warm", "sequence"]),
        default=default,
        show_default=default is not None,
        help=(
            "Contents of simulated devices' caches when an op starts: none of its data (cold), its "
            "code, as in benchmarks that loop over a call (loop), its data and code (warm), or what "
            "earlier calls left (sequence)."
        )
        + ("" if default is not None else f" By default {otherwise}."),
    )


tables_argument = click.argument("kernel_details", metavar="KERNEL_DETAILS...", nargs=-1, required=True)
"""KERNEL_DETAILS: kernel tables of the Ascend profiler."""


def plugin_option(command: Command) -> Command:
    """Add --plugin: user files that register how ops are replayed, initialized and predicted."""

    @wraps(command)
    def taking_plugins(
        *, plugin: tuple[str, ...], init_module: tuple[str, ...], custom_op_dir: tuple[str, ...], **others: Any
    ) -> Any:
        return command(plugin=(*plugin, *init_module, *custom_op_dir), **others)

    options = [
        click.option(
            "--plugin",
            type=FileName(),
            multiple=True,
            metavar="FILE|FOLDER|MODULE",
            envvar="OPREPLAY_PLUGIN",
            show_envvar=True,
            help=(
                "Run this file, every .py file of this folder, or this module first: it registers initializers, "
                "conversions, executors or estimators for your ops. Repeatable; in the variable, separate names with "
                f"'{os.pathsep}'."
            ),
        ),
        click.option(
            "--init-module", type=FileName(), multiple=True, metavar="FILE|MODULE", cls=Renamed, now="--plugin"
        ),
        click.option(
            "--custom-op-dir",
            type=FileName(),
            multiple=True,
            metavar="FOLDER",
            envvar="OPREPLAY_CUSTOM_OP_DIR",
            cls=Renamed,
            now="--plugin",
        ),
    ]
    taking: Any = with_options(taking_plugins, options)
    return taking


init_arg_option = setting(
    "--init-arg",
    multiple=True,
    metavar="NAME.OPTION=VALUE",
    help="An option of an initializer; `opreplay list initializers` lists them. Repeatable.",
)
"""init_arg: value for an option of an initializer. Initializers fill arguments."""


seed_option = setting("--seed", type=int, default=0, show_default=True, help="Random seed of the inputs.")
"""seed: random seed of all generated values."""


values_option = setting(
    "--values",
    type=FileName(),
    metavar="FILE",
    help="Real values for arguments: a .safetensors file with tensors named OP.ARGUMENT.",
)
"""values: real tensors for arguments of chosen ops."""


def format_option(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --format; the first name is the default."""
    return click.option(
        "--format", "format_", type=click.Choice(names), default=names[0], show_default=True, help="Output format."
    )


page_option = click.option("--output", "-o", metavar="FILE.html", help="Also write an HTML page that works offline.")
"""--output of commands whose result can also be written as an HTML page."""


measured_soc_option = click.option(
    "--soc",
    multiple=True,
    type=SocName(),
    metavar="NAME|FILE",
    help="The measured device, or a device file (.toml); give it once for all tables or once per table.",
)
"""--soc for commands that read KERNEL_DETAILS: the devices on which the kernels were measured."""


force_option = click.option("--force", is_flag=True, help="Overwrite existing files.")
"""--force: overwrite existing files; without it no file is ever overwritten."""
