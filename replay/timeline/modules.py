# pyright: strict
"""A step's time by module as a tree. Layers of one kind are folded: `Qwen2DecoderLayer ×24` with its children."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from opreplay.replay.ir.step import ModuleTime
from opreplay.replay.timeline.graph.model import StepGraph
from opreplay.replay.timeline.names import Names
from opreplay.traces.arrays import Ints

DEEPEST = 12
"""Maximum depth of the tree; the time of deeper modules counts for the last level."""
_NUMBER = re.compile(r"_\d+$")
"""Number at the end of a module name. torch.profiler numbers the modules of a class by their first calls."""


def module_tree(names: Names, graph: StepGraph, path_us: Mapping[int, float]) -> tuple[ModuleTime, ...]:
    """Return the modules of the step's ops, outer before inner. Modules with the most device time come first.

    `path_us` has the time on the critical path by op row. The result is empty if the trace names no modules.
    """
    labels, parents, of_op = names.module_calls()
    if not len(of_op):
        return ()
    nodes = graph.nodes
    owned = nodes.owner >= 0
    device_us: defaultdict[int, float] = defaultdict(float)
    spent: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for owner, us in zip(nodes.owner[owned].tolist(), nodes.dur_us[owned].tolist(), strict=True):
        device_us[int(of_op[owner])] += us
    for call, us in device_us.items():
        spent[call][0] += us
    for row, us in path_us.items():
        if row >= 0:
            spent[int(of_op[row])][1] += us
    times: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    modules: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for call, (device, path) in spent.items():
        folded: tuple[str, ...] = ()
        for label in _around(call, labels, parents)[:DEEPEST]:
            folded = (*folded, unnumbered(label))
            times[folded][0] += device
            times[folded][1] += path
            modules[folded].add(label)
    return as_tree(times, modules)


def unnumbered(module: str) -> str:
    """Return a module's class without the number that torch.profiler gives it: "Linear" for "Linear_9"."""
    return _NUMBER.sub("", module)


def as_tree(
    times: Mapping[tuple[str, ...], Sequence[float]], modules: Mapping[tuple[str, ...], Collection[str]]
) -> tuple[ModuleTime, ...]:
    """Return modules by path as a sorted tree, outer before inner.

    For each path, `times` has (device time, time on the critical path), and `modules` has the names of the modules.
    """

    def ahead(path: tuple[str, ...]) -> list[tuple[float, float, str]]:
        above = [path[: depth + 1] for depth in range(len(path))]
        return [(-times[part][0], -times[part][1], part[-1]) for part in above]

    return tuple(
        ModuleTime(
            name=path[-1],
            count=len(modules[path]),
            depth=len(path) - 1,
            device_us=times[path][0],
            path_us=times[path][1],
        )
        for path in sorted(times, key=ahead)
    )


def _around(call: int, labels: tuple[str, ...], parents: Ints) -> list[str]:
    """Return the names of the module calls around a call, followed by the name of the call itself.

    A module that calls itself counts once.
    """
    chain: list[str] = []
    while call >= 0:
        if not chain or chain[-1] != labels[call]:
            chain.append(labels[call])
        call = int(parents[call])
    return chain[::-1]
