"""Whether captured steps are the models: checked on real values, and held against profiles of the same steps.

    python -m benchmarks.capture_models [--only MODEL ...] [--calls] [--published | --configs]

For each model of `small_models.py`, in eval and in a training step with SGD and with AdamW: the plan that fake tensors
give is replayed on real values and every output, parameter and buffer compared (`opreplay capture --check`); and the
calls of the plan are compared with those of a profile of the same step, in name, types, shapes, strides and scalars.
--configs does so with a forward of `hf:CONFIG` and a training step of each model of `config_models.py`, --published
with those of torchvision and timm. Bars: each model equal in every mode, or refused; 99.5 % of calls equal.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import small_models
from opreplay.replay.capture.capture import capture_made, check_made, step_maker
from opreplay.replay.capture.record import forget_cached_tensors
from opreplay.replay.ir.model import ReplayArg, ReplayOp, ReplayPlan, Value
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.recorded.groups import is_arithmetic, signature_id
from opreplay.replay.resolve.schema import specs_of
from opreplay.traces import read_trace
from opreplay.traces.errors import OpReplayError
from opreplay.traces.links.parents import innermost_parent
from opreplay.traces.model import TensorMeta, Trace, contiguous_strides

_TYPE_CODES: dict[Any, Value] = {4: "torch.int64"}
"""How schemas write the default of an argument that is a type."""
RELATIVE = 1e-6
"""Of floats, which a profile prints with fewer digits."""
SHARE = 0.995
"""Of the calls of a profile and a plan, those that both have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How many calls of a profile are in a captured plan; those inside of others need not be."""

    equal: int
    profiled: int
    captured: int
    missing: tuple[str, ...] = ()
    """Those that are not."""
    added: tuple[str, ...] = ()
    """Calls of the plan that the profile has not."""

    @property
    def share(self) -> float:
        """Of the calls that either has."""
        return self.equal / max(1, self.profiled, self.captured)


def calls_compared(plan: ReplayPlan, make: Callable[[], Any]) -> Calls:
    """The calls of a captured plan beside those of a profile of the same step."""
    trace = profiled(make)
    profiled_plan = build_plan(trace, select="all")
    ops = {op.id: op for op in profiled_plan.ops}
    ids = [signature_id(call_entry) for call_entry in trace.signatures]
    captured_calls: dict[str, list[list[Any]]] = defaultdict(list)
    for op in plan.ops:
        captured_calls[op.name].append([op, op.count])
    counts: dict[str, int] = defaultdict(int)
    composed = [
        is_composed(call_entry.name, ops.get(id_)) for call_entry, id_ in zip(trace.signatures, ids, strict=True)
    ]
    top = set(rows_below_autograd(trace, composed))
    for row in sorted(top):
        counts[ids[trace.ops.signature[row]]] += 1
    equal, missing = 0, []
    for id_, count in counts.items():
        op = ops.get(id_)
        wanted = count
        for entry in captured_calls.get(op.name, []) if op is not None else []:
            if entry[1] and op is not None and same_call(op, entry[0]):
                taken = min(entry[1], wanted)
                entry[1] -= taken
                wanted -= taken
                if not wanted:
                    break
        equal += count - wanted
        if wanted:
            missing.append(f"{wanted} x {op.name if op else id_} {shown(op)}")
    for row in set(range(len(trace.ops))) - top:  # such as what autograd clones before an op writes to it
        inside = ops.get(ids[trace.ops.signature[row]])
        entries = (
            []
            if inside is None
            else [
                call_entry
                for call_entry in captured_calls[inside.name]
                if call_entry[1] and same_call(inside, call_entry[0])
            ]
        )
        for entry in entries[:1]:
            entry[1] -= 1
    return Calls(
        equal=equal,
        profiled=sum(counts.values()),
        captured=equal + sum(count for entries in captured_calls.values() for _, count in entries),
        missing=tuple(missing),
        added=tuple(
            f"{count} x {op.name} {shown(op)}" for entries in captured_calls.values() for op, count in entries if count
        ),
    )


def profiled(make: Callable[[], Any]) -> Trace:
    """A profile of the step that `make()` gives, run once on real tensors."""
    torch.manual_seed(0)
    forget_cached_tensors()
    step = step_maker(make)()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        step.run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return read_trace(path)


def rows_below_autograd(trace: Trace, composed: Sequence[bool]) -> Iterator[int]:
    """Rows of the calls that autograd makes and that torch does not compose of others: what a dispatch mode sees.

    Below them lie what their kernels call; above them what torch composes of several.
    """
    parents = innermost_parent(trace.ops)
    names = [signature.name for signature in trace.signatures]
    taken = set()
    for row in sorted(range(len(trace.ops)), key=lambda row: int(trace.ops.start_ns[row])):
        at = int(parents[row])
        while at >= 0 and at not in taken:
            at = int(parents[at])
        which = int(trace.ops.signature[row])
        if at < 0 and names[which].startswith("aten::") and not composed[which]:
            taken.add(row)
            yield row


def is_composed(name: str, recorded: ReplayOp | None) -> bool:
    """Whether torch composes the overload that was called, or every one, of other ops before autograd sees it."""
    if not name.startswith("aten::"):
        return False
    specs = [spec for spec in specs_of(name) if not any(arg.out for arg in spec.args)]
    if recorded is not None and recorded.overload is not None and recorded.via is None:
        specs = [spec for spec in specs if spec.overload == recorded.overload] or specs
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(specs) and all(
        has(spec.full_name, "CompositeImplicitAutograd") and not has(spec.full_name, "CPU") for spec in specs
    )


def same_call(recorded: ReplayOp, captured: ReplayOp) -> bool:
    """Whether a profile's call is a captured one, as far as the profile says: what was guessed does not count, nor
    floats of arithmetic, of which a profile's plan has those of one call, nor workspaces, whose size is a library's."""
    guessed = {note.argument for note in recorded.assumptions}
    mine = {arg.name: arg for arg in captured.args}
    defaults = {
        arg.name: _TYPE_CODES.get(arg.default, arg.default) if arg.name == "dtype" else arg.default
        for spec in specs_of(captured.name)
        if spec.overload == captured.overload
        for arg in spec.args
    }
    if recorded.overload != captured.overload and recorded.reason is None:
        return False
    return all(
        arg.name in guessed
        or arg.type == "Device"
        or arg.name == "workspace"
        or (isinstance(arg.value, float) and is_arithmetic(recorded.name))
        or same_argument(arg, mine.get(arg.name), defaults.get(arg.name))
        for arg in recorded.args
    )


def same_argument(recorded: ReplayArg, captured: ReplayArg | None, default: Value) -> bool:
    """Whether two arguments agree; one that a call leaves out has its default."""
    if captured is None:
        return not recorded.tensors and same_value(recorded.value, default)
    if recorded.tensors or captured.tensors:
        return len(recorded.tensors) == len(captured.tensors) and all(
            (a is None and b is None)
            or (a is not None and b is not None and (a.shape, a.dtype) == (b.shape, b.dtype) and steps(a) == steps(b))
            for a, b in zip(recorded.tensors, captured.tensors, strict=True)
        )
    return same_value(recorded.value, captured.value)


def steps(meta: TensorMeta) -> list[int]:
    """Strides that matter: of the dimensions with more than one element."""
    strides = meta.strides or contiguous_strides(meta.shape)
    return [step for size, step in zip(meta.shape, strides, strict=True) if size > 1] if math.prod(meta.shape) else []


def same_value(a: Value, b: Value) -> bool:
    """Whether two scalars or lists agree; of device, layout and memory format a profile has codes."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        first, second = (list(v) if isinstance(v, tuple) else [v] for v in (a, b))
        if len(first) == 1 and len(second) > 1:
            first = first * len(second)
        if len(second) == 1 and len(first) > 1:
            second = second * len(first)
        return len(first) == len(second) and all(map(same_value, first, second))
    if isinstance(a, bool | int | float) and isinstance(b, bool | int | float):
        return math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=1e-12)
    return a == b


def shown(op: ReplayOp | None) -> str:
    """The arguments of a call, in short."""
    if op is None:
        return ""
    return " ".join(f"{arg.name}={' '.join(map(form, arg.tensors)) if arg.tensors else arg.value}" for arg in op.args)


def form(meta: TensorMeta | None) -> str:
    """Sizes of a tensor, and its strides where it is not contiguous."""
    if meta is None:
        return "None"
    strides = meta.strides if meta.strides not in (None, contiguous_strides(meta.shape)) else ()
    return f"{list(meta.shape)}{f' by {list(strides)}' if strides else ''}"


PUBLISHED = {
    "torchvision": (
        ("resnet18", 64), ("densenet121", 64), ("mobilenet_v3_small", 64), ("shufflenet_v2_x0_5", 64), ("swin_t", 64),
        ("convnext_tiny", 64),
    ),
    "timm": (
        ("deit_tiny_patch16_224", 224), ("mobilevit_xxs", 64), ("ghostnet_050", 64), ("mixer_s32_224", 224),
        ("resnest14d", 64), ("efficientnet_lite0", 64),
    ),
}  # fmt: skip
"""Models as published, by library, with the width of their images: four of them, ten classes."""


def published_model(library: str, name: str, width: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """One without weights, and its inputs."""
    module = import_module("torchvision.models" if library == "torchvision" else library)
    create = module.get_model if library == "torchvision" else module.create_model
    torch.manual_seed(0)
    return create(name, num_classes=10), (torch.randn(4, 3, width, width),)


def models(of: str) -> dict[str, Callable[[str], Callable[[], Any]]]:
    """Name → (mode → make) of the small models, of configs, or of those of libraries that are installed."""
    if of == "configs":
        from benchmarks import config_models

        return {name: partial(config_models.step_of_config, name) for name in config_models.CONFIGS}
    if of == "small":
        return {name: partial(small_models.step_of_model, name) for name in small_models.MODELS}
    return {
        f"{library}.{name}": partial(small_models.step_from, partial(published_model, library, name, width))
        for library, listed in PUBLISHED.items()
        if find_spec(library) is not None
        for name, width in listed
    }


def main() -> None:
    """One line a model and mode, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=None, help="names of models")
    parser.add_argument("--calls", action="store_true", help="show calls that the plan lacks (-) or has beside (+)")
    which = parser.add_mutually_exclusive_group()
    of: dict[str, Any] = {"action": "store_const", "dest": "of", "default": "small"}
    which.add_argument("--published", const="published", help="models of torchvision and timm, where installed", **of)
    which.add_argument("--configs", const="configs", help="kinds of models that transformers has", **of)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sums = [0, 0]
    good: list[bool] = []
    as_profiled: list[bool] = []
    chosen = {name: make for name, make in models(args.of).items() if not args.only or name in args.only}
    modes = ("prefill", "sgd") if args.of == "configs" else small_models.MODES
    for name, make_of in chosen.items():
        fine, share = True, 1.0
        for mode in modes:
            try:
                make = make_of(mode)
                plan = capture_made(make, source=name)
                checked = check_made(make, plan)
                calls = calls_compared(plan, make)
            except OpReplayError as error:
                fine = False
                print(f"{name:20} {mode:6} {error}")
                continue
            fine &= checked.equal
            share = min(share, calls.share)
            sums[0] += calls.equal
            sums[1] += calls.profiled
            both = (*checked.outputs, *checked.parameters)
            verdict = "equal" if checked.equal else f"NOT equal: {checked.first_difference or checked.reason}"
            print(
                f"{name:20} {mode:6} {verdict}: {sum(t.bits_equal for t in both)} of {len(both)} bit for bit, "
                f"largest error {checked.largest_error:g}; {calls.equal} of {calls.profiled} profiled calls "
                f"({calls.captured} captured){f'; {checked.other_calls}' if checked.other_calls else ''}"
            )
            for sign, lines in (("-", calls.missing), ("+", calls.added)) if args.calls else ():
                for line in lines[:500]:
                    print(f"    {sign} {line}")
        good.append(fine)
        as_profiled.append(fine and share >= SHARE)
    print(
        f"{sum(good)} of {len(good)} models equal in every mode, {sum(as_profiled)} with {SHARE:.1%} of calls in each; "
        f"{sums[0]} of {sums[1]} calls equal ({sums[0] / max(1, sums[1]):.2%})"
    )


if __name__ == "__main__":
    main()
