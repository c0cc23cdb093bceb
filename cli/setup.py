# pyright: strict
"""Plugins, and what predictions could not do, told on stderr: what `run`, `plan` and `simulate` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.initializers.registry import Registry
    from opreplay.replay.arguments.work.expected import ExpectedContents
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.plan.kept import KeptContents


UNUSED_SHOWN = 5
"""Unused registrations that are told one by one."""


def use_plugins(names: Sequence[str], custom_op_dir: str | None = None) -> tuple[str, ...]:
    """Load installed plugins, those of --plugin and the files of --custom-op-dir; say on stderr what they registered.

    Gives the names of all that the user named, for other processes to load. Raises UsageError.
    """
    from collections import Counter

    from opreplay.cli.terminal import console
    from opreplay.replay.plugins import custom_op_files, load_plugins, registrations

    load_plugins(names, custom_op_dir=custom_op_dir)
    by_source = Counter((one.source, one.kind) for one in registrations())
    for source in dict.fromkeys(source for source, _ in by_source):
        counts = ", ".join(
            f"{n} {kind}{'s' if n > 1 and kind != 'properties' else ''}"
            for (of, kind), n in by_source.items()
            if of == source
        )
        console.narrate(f"{source}: {counts}")
    return (*names, *custom_op_files(custom_op_dir))


class SetUp(NamedTuple):
    """What a command that measures and predicts has before it reads a trace."""

    plugins: tuple[str, ...]
    """All that the user named, for other processes to load."""
    contents: ExpectedContents
    devices: dict[str, DeviceProfile]


def set_up(
    plugins: Sequence[str],
    custom_op_dir: str | None,
    init_modules: Sequence[str],
    init_args: Sequence[str],
    *,
    seed: int,
    values: str | None,
    socs: tuple[str, ...],
    cluster: str | None = None,
) -> SetUp:
    """Users' code, what arguments will hold, and the simulated devices. Raises UsageError and FormatError for each."""
    from opreplay.replay.arguments.work.expected import expected_contents
    from opreplay.replay.ascend.simulate.devices import load_socs

    named = use_plugins(plugins, custom_op_dir)
    contents = expected_contents(init_modules, init_args, seed=seed, values=values)
    return SetUp(named, contents, load_socs(socs, cluster))


def may_keep(wanted: bool, plugins: Sequence[str]) -> bool:
    """Whether plans may be kept between runs: not where users' code or installed plugins may decide on them."""
    from importlib.metadata import entry_points

    from opreplay.initializers import extensions
    from opreplay.replay import plugins as loading

    if not wanted or plugins or loading.registrations():
        return False
    return not any(entry_points(group=group) for group in (loading.ENTRY_POINTS, extensions.ENTRY_POINTS))


def contents_of_plan(plan: ReplayPlan, *, seed: int, keep: bool) -> ExpectedContents | KeptContents:
    """What the arguments of a plan's ops will hold with the built-in initializers; kept between runs with `keep`."""
    from opreplay.replay.plan.kept import KeptContents

    return KeptContents(partial(_built_in, seed), plan, seed) if keep else _built_in(seed)


def own_contents(
    init_modules: Sequence[str], init_args: Sequence[str], *, seed: int, values: str | None
) -> ExpectedContents | None:
    """The same with what the user gave: initializers, their settings, a file of values; None where nothing was given.

    Raises UsageError for modules and settings that cannot be used, FormatError for an unsound file.
    """
    if not init_modules and not init_args and values is None:
        return None
    from opreplay.replay.arguments.work.expected import expected_contents

    return expected_contents(init_modules, init_args, seed=seed, values=values)


def _built_in(seed: int) -> ExpectedContents:
    from opreplay.replay.arguments.work.expected import (
        expected_contents,  # imports torch, which a kept plan does not need
    )

    return expected_contents(seed=seed)


def keep_contents(contents: ExpectedContents | KeptContents) -> None:
    """Keep for the next run what was made for a plan that may be kept."""
    from opreplay.replay.plan.kept import KeptContents

    if isinstance(contents, KeptContents):
        contents.keep()


def refuse_unused_initializers(
    registry: Registry, ops: Sequence[ReplayOp], init_modules: Sequence[str], init_args: Sequence[str]
) -> None:
    """Raises UsageError for a --init-module whose initializers name no op of the plan, and for a --init-arg of such."""
    from opreplay.initializers.extensions import registered
    from opreplay.replay.plan.select import nearest
    from opreplay.replay.standins import canonical_name

    names = [name for op in ops for name in (op.name, op.called)]
    known = {*names, *(canonical_name(name) for name in names)}
    if not known:
        return
    for module in init_modules:
        kinds = [kind for kind, source in registered().values() if source == f"--init-module {module}"]
        patterns = [pattern for kind in kinds for pattern in kind.op_patterns]
        if kinds and not known.intersection(patterns):
            raise UsageError(
                f"--init-module {module}: none of its initializers names an op of the plan",
                hint=f"They name {', '.join(patterns[:4])}. {nearest(patterns, names)}",
            )
    for setting in init_args:
        rule = registry[setting.partition(".")[0]]
        if not known.intersection(rule.op_patterns):
            raise UsageError(
                f"--init-arg {setting}: no op of the plan is initialized by {rule.name}",
                hint=f"It is for {', '.join(rule.op_patterns[:4])}. {nearest(rule.op_patterns, names)}",
            )


def tell_problems(contents: ExpectedContents | KeptContents) -> None:
    """Say on stderr for how many ops the initializers could not make what predictions depend on."""
    from opreplay.cli.terminal import console

    if contents.impossible:
        count, first = len(contents.impossible), next(iter(contents.impossible.values()))
        console.narrate(f"{count} op{'s' if count > 1 else ''} cannot hold the batch that the trace tells: {first}")
    if contents.unrecorded:
        count, first = len(contents.unrecorded), next(iter(contents.unrecorded.values()))
        console.narrate(f"{count} op{'s' if count > 1 else ''} may have done more than is predicted: {first}")
    if contents.problems:
        count, first = len(contents.problems), next(iter(contents.problems.values()))
        console.narrate(
            f"contents of {count} op{'s' if count > 1 else ''} cannot be made, so their shapes alone decide: {first}"
        )


def tell_unused(devices: Mapping[str, DeviceProfile], ops: Sequence[ReplayOp]) -> None:
    """Say on stderr which of the user's estimators, properties and rules made no prediction, and why."""
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.custom.estimators import unused_registrations

    lines = unused_registrations(tuple(devices), frozenset(op.name for op in ops))
    for line in lines[:UNUSED_SHOWN]:
        console.narrate(line)
    if len(lines) > UNUSED_SHOWN:
        console.narrate(f"and {len(lines) - UNUSED_SHOWN} more registrations made no prediction")
