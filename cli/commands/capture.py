# pyright: strict
"""`opreplay capture`: make a plan from Python code, without a profile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.options.settings import Command, refuse_given, setting
from opreplay.cli.options.shared import cluster_option, force_option, format_option, fused_option, seed_option
from opreplay.cli.options.types import Count, SocName

if TYPE_CHECKING:
    from opreplay.cli.exit_codes import ExitCode
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.capture.serving.quantised import Weights
    from opreplay.replay.ir.captured import CaptureOptions, LikeDevice, Via
    from opreplay.replay.report.view import View


@click.command("capture", cls=Command, short_help="Extract the ops of a model, without a profile.")
@click.argument("target", metavar="TARGET")
@click.argument("sizes", nargs=-1, metavar="[NAME=N,N,...]...")
@click.option(
    "--via",
    type=click.Choice(["dispatch", "export", "compile"]),
    default="dispatch",
    show_default=True,
    help=(
        "How to record: each call as it runs, the graph of torch.export, or the graphs that "
        "torch.compile passes to its backend."
    ),
)
@setting("--decompose", is_flag=True, help="With --via export: the graph after decomposition to core ops.")
@click.option("--real", is_flag=True, help="Run on real tensors; needed if the step depends on tensor contents.")
@click.option(
    "--check", is_flag=True, help="Replay the plan on real values and compare all results with those of the model."
)
@click.option("--trust", is_flag=True, help="Load FILE.pt2, which executes any code that it contains.")
@seed_option
@click.option(
    "--phase",
    type=click.Choice(["prefill", "decode", "train"]),
    help=("For hf:CONFIG: a first forward pass, one more token per sequence, or a training step.  [default: prefill]"),
)
@click.option("--batch", type=Count(min=1), metavar="N", help="For hf:CONFIG: number of sequences.  [default: 1]")
@click.option(
    "--context",
    type=Count(min=1),
    metavar="N",
    help="For hf:CONFIG: tokens per sequence.  [default: 1024]",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="For hf:CONFIG: dtype of the parameters.  [default: bfloat16]",
)
@click.option(
    "--expert-parallel",
    type=Count(min=1),
    metavar="N",
    help=(
        "For hf:CONFIG: distribute the experts over N ranks, which exchange tokens; if the model is "
        "also split over N tensor ranks, each has whole experts.  [default: 1]"
    ),
)
@click.option(
    "--tensor-parallel",
    type=Count(min=1),
    metavar="N",
    help=("For hf:CONFIG: split heads, widths and vocabulary over N ranks and all-reduce the results.  [default: 1]"),
)
@click.option(
    "--pipeline-parallel",
    type=Count(min=1),
    metavar="N",
    help=(
        "For hf:CONFIG: split the layers into N pipeline stages that pass on hidden states; rank R is in stage R // "
        "tensor ranks.  [default: 1]"
    ),
)
@setting(
    "--mla",
    type=click.Choice(["absorbed", "expanded"]),
    help=(
        "For hf:CONFIG, decode of latent attention: attend to the latents, as servers do "
        "(absorbed), or to the keys and values computed from them, as transformers does "
        "(expanded).  [default: absorbed]"
    ),
)
@fused_option(
    "Replace calls with the fused kernels that servers run on Ascend: norms "
    "with sums, rotary embeddings, SwiGlu, attention, writes to caches, experts.  [default: ascend for inference of "
    "hf:CONFIG with --vary or --weights, else none]"
)
@click.option(
    "--weights",
    type=click.Choice(["w8a8", "w4a16"]),
    default=None,
    help=(
        "Write the plan with quantised weights: 8 bits for weights and activations, or 4 bits "
        "for weights only (in a mixture-of-experts model, only the experts' weights)."
    ),
)
@setting(
    "--world-size", type=Count(min=1), metavar="N", help="Act as one rank of a job with N ranks, without communication."
)
@setting("--rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="R", help="Which rank.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "npu"]),
    default="cpu",
    show_default=True,
    help=(
        "Use torch's defaults for this device, e.g. foreach optimizers on cuda and npu. Tensors are still fake CPU "
        "tensors."
    ),
)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=N,N,...",
    help=(
        "For hf:CONFIG: print a table instead of one plan, e.g. `--vary batch=1,8,32 "
        "context=1k,8k`: ms per token, tokens/s, memory, and whether it fits, for each size on "
        "each --soc. For FILE.py:make: its step and memory with these arguments. Repeatable."
    ),
)
@click.option(
    "--soc",
    multiple=True,
    type=SocName(),
    metavar="NAME|FILE",
    help="With --vary: the devices. [default: 910b3] Repeatable.",
)
@cluster_option
@format_option("table", "json")
@click.option(
    "--output",
    "-o",
    "outputs",
    multiple=True,
    metavar="FILE",
    help=(
        "Write the plan as JSON, for every command that takes a trace. With --vary: write the table as .html, .csv "
        "or .md. Repeatable."
    ),
)
@force_option
def command(
    target: str,
    sizes: tuple[str, ...],
    via: Via,
    decompose: bool,
    real: bool,
    check: bool,
    trust: bool,
    seed: int,
    phase: str | None,
    batch: int | None,
    context: int | None,
    dtype: str | None,
    expert_parallel: int | None,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    mla: str | None,
    fused: Fused | None,
    weights: Weights | None,
    world_size: int | None,
    rank: int,
    device: LikeDevice,
    vary: tuple[str, ...],
    soc: tuple[str, ...],
    cluster: str | None,
    format_: str,
    outputs: tuple[str, ...],
    force: bool,
) -> ExitCode:
    """Run TARGET once on fake tensors, which have no memory, and record every call: a plan with exact arguments, the
    order of calls, the module and phase of each, peak memory and FLOPs. No times are recorded.

    TARGET is FILE.py:make. The file is executed as your own code. make() returns (callable, args), or (module,
    inputs, {"optimizer": ..., "loss": ...}) for a training step. TARGET can also be hf:CONFIG.json, the config of a
    model that transformers knows (extra hf); nothing is downloaded. Or it is FILE.pt2 of torch.export.save, with
    --trust: torch runs what such a file contains.
    Exits with 1 if --check finds a difference.
    """
    from opreplay.cli.exit_codes import ExitCode
    from opreplay.cli.terminal import console
    from opreplay.replay.capture.sizes import check_sizes, sizes_of
    from opreplay.replay.capture.target import check_target, target_of
    from opreplay.traces.errors import UsageError

    shape = {
        "phase": phase,
        "batch": batch,
        "context": context,
        "dtype": dtype,
        "expert_parallel": expert_parallel,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "mla": mla,
    }
    shape = {name: value for name, value in shape.items() if value is not None}
    from opreplay.replay.ir.captured import CaptureOptions

    options = CaptureOptions(
        via=via,
        decompose=decompose,
        real=real,
        seed=seed,
        world_size=world_size,
        rank=rank,
        device=device,
    )
    if vary:
        refuse_given(("check",), "{} is for a single plan", "Leave --vary out.")
        refuse_given(("trust",), "{} is for FILE.pt2, which has no sizes to vary")
        wanted = sizes_of((*vary, *sizes))
        check_sizes(target, shape, wanted)
        check_target(target)

        from opreplay.cli.outputs import check_outputs, write_view

        check_outputs(outputs, TABLES, force=force)
        view = _vary(target, shape, wanted, soc, cluster, fused, weights, options)
        write_view(view, outputs, force=force)
        console.show_view(view, format_)
        return ExitCode.OK
    if sizes:
        raise UsageError(
            f"{sizes[0]} must not follow TARGET directly",
            hint="Write sizes after --vary: --vary batch=1,8 context=1k,8k.",
        )
    if soc or cluster:
        raise UsageError("--soc and --cluster need --vary", hint="To simulate one plan, run `opreplay timeline PLAN`.")
    check_target(target)

    from opreplay.cli.outputs import check_plan_file, write_file

    for output in outputs:
        check_plan_file(Path(output), force=force)

    from opreplay.replay.capture.capture import capture_target, check_made
    from opreplay.replay.capture.serving.form import as_served
    from opreplay.replay.report.step import captured

    named = target_of(target, shape, trust=trust)
    plan = capture_target(named, options)
    check_result = check_made(named.make, plan, seed=seed, device=device) if check else None
    if fused is not None or weights is not None:
        plan = as_served(plan, fused, weights)
    for output in outputs:
        write_file(Path(output), console.json_text(plan), force=force)
    console.show_view(captured.view(plan, check_result), format_)
    return ExitCode.OK if check_result is None or check_result.equal else ExitCode.INCOMPLETE


TABLES = (".html", ".csv", ".md")
"""File suffixes that --output accepts together with --vary."""


def _vary(
    target: str,
    shape: dict[str, Any],
    sizes: dict[str, tuple[int, ...]],
    soc: tuple[str, ...],
    cluster: str | None,
    fused: Fused | None,
    weights: Weights | None,
    options: CaptureOptions,
) -> View:
    """Return the table that --vary prints: a prediction for each combination of sizes."""
    from opreplay.cli.terminal.progress import SizesProgress
    from opreplay.replay.ascend.simulate.devices import load_socs

    devices = list(load_socs(soc or (() if cluster else ("910b3",)), cluster).values())

    from opreplay.replay.capture.config_file import PREFIX
    from opreplay.replay.capture.serving.form import as_served
    from opreplay.replay.job.vary import vary_config, vary_file
    from opreplay.replay.report.step import served, sized
    from opreplay.replay.timeline.served import ServedSteps

    form = partial(as_served, fused=fused, weights=weights)
    with SizesProgress() as tell:
        if target.startswith(PREFIX):
            steps = vary_config(target, shape, sizes, devices, form, weights=weights, tell=tell, options=options)
        else:
            steps = vary_file(target, shape, sizes, devices, form, tell=tell, options=options)
    return served.view(steps) if isinstance(steps, ServedSteps) else sized.view(steps)
