# pyright: strict
"""Builds the plan for a bundle from the ops that a script can replay with torch alone.

This module selects these ops and removes everything that names the model; `files` writes the files.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opreplay.initializers.registry import Registry
from opreplay.replay.export.instead import called_instead
from opreplay.replay.export.values import Spec, describe
from opreplay.replay.host.libraries import LIBRARY_OF
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.names import split_name
from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.ir.plan_file import dump_plan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ops.aten import EQUIVALENTS, legacy_form
from opreplay.replay.resolve.defining_files import defining_file
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import TORCH_NAMESPACES, Policy
from opreplay.replay.resolve.user.executors import EXECUTORS

BUNDLE_VERSION = 1
"""Version of the data that ops.json has besides the plan and that the script reads. 1: first version."""
SOURCE = "bundle"
"""Name that replaces the trace's name in the plan."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """One op that is not in the bundle."""

    name: str
    count: int
    reason: str

    @property
    def is_public(self) -> bool:
        """Whether the name belongs to an op in a published library. Such a name reveals nothing about the model."""
        parts = split_name(self.name)
        return parts is not None and parts[0] in (TORCH_NAMESPACES | LIBRARY_OF.keys())


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a bundle's files."""

    plan: ReplayPlan
    inputs: dict[str, dict[str, list[Spec | None] | int]]
    """Op id → argument → a description of the contents of each tensor of the argument.

    The key "*" takes the place of an argument for one number: the minimum number of elements in the memory of the op's
    first tensor.
    """
    instead: dict[str, dict[str, Any]]
    """Op id → an equivalent op with its inputs, for devices that have no kernel for the recorded op."""
    left_out: tuple[LeftOut, ...]
    keeps_names: bool
    executors: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict[str, dict[str, Any]])
    """Op id → the function in a plugin's file that runs the op: its file, name and line, and whether it takes lists."""
    files: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    """Plugin files by name."""
    namespaces: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Namespace → file that registers the torch ops of a plugin."""

    def to_json(self) -> bytes:
        """Return a plan that opreplay can read, with the script's data under the key "bundle"."""
        plan = msgspec.json.decode(dump_plan(self.plan))
        left_out = [
            {"name": op.name if self.keeps_names or op.is_public else None, "count": op.count, "why": self.why(op)}
            for op in self.left_out
        ]
        extra = {"version": BUNDLE_VERSION, "inputs": self.inputs, "instead": self.instead, "left_out": left_out}
        extra |= {"executors": self.executors} if self.executors else {}
        extra |= {"namespaces": self.namespaces} if self.namespaces else {}
        return plain_json(msgspec.json.format(msgspec.json.encode({**plan, "bundle": extra}), indent=1)) + b"\n"

    def why(self, op: LeftOut) -> str:
        """Return the reason, or only its kind if the detail may contain private names."""
        return op.reason if self.keeps_names or op.is_public else op.reason.partition(":")[0]


def make_bundle(
    plan: ReplayPlan,
    registry: Registry,
    *,
    policy: Policy,
    seed: int = 0,
    memory_bytes: int,
    keep_names: bool = False,
    plugins: Sequence[str] = (),
) -> Bundle:
    """Return the ops of a plan that a script can replay with torch alone, and the other ops with the reasons.

    Without `keep_names`, nothing that names the model, its files, its machine or its kernels is kept. `plugins` may be
    .py files. The bundle then also includes such a file and two kinds of ops: those that an executor in the file runs,
    and those that the file defines with torch.library.
    """
    plugin_files = {str(file.resolve()): str(file) for name in plugins for file in _python_files(Path(name))}
    executors: dict[str, dict[str, Any]] = {}
    files: dict[str, bytes] = {}
    namespaces: dict[str, str] = {}
    ops: list[ReplayOp] = []
    inputs: dict[str, dict[str, list[Spec | None] | int]] = {}
    instead: dict[str, dict[str, Any]] = {}
    left_out: list[LeftOut] = []
    for op in plan.ops:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if op.resolved_by == "python function":
                    what = f"{op.called} is a Python function of a module, which a bundle cannot contain"
                    raise NotReplayable(
                        Reason(
                            "library missing",
                            f"{what}: register an executor with @register_executor, and use --with-plugins",
                        )
                    )
                if op.resolved_by == "executor":
                    runs, file = _executor_of(op, plugin_files)
                    files[runs["file"]], executors[op.id] = file.read_bytes(), runs
                defined = None
                if op.resolved_by != "executor" and op.called.partition("::")[0] not in TORCH_NAMESPACES:
                    defined = defining_file(op.called, op.overload or "", plugin_files)
                prepared, specs, substitute = _prepared(
                    op, registry, policy, seed, memory_bytes, from_plugin=defined is not None
                )
                if defined is not None:
                    name = f"plugins/{defined.name}"
                    files[name], namespaces[op.called.partition("::")[0]] = defined.read_bytes(), name
        except NotReplayable as stopped:
            left_out.append(LeftOut(name=op.name, count=op.count, reason=str(stopped.reason)))
            continue
        ops.append(prepared if keep_names else _without_names(prepared))
        inputs[op.id] = specs
        if substitute is not None:
            instead[op.id] = substitute
    source, device = (plan.source, plan.device) if keep_names else (SOURCE, None)
    return Bundle(
        plan=msgspec.structs.replace(plan, source=source, device=device, ops=tuple(ops)),
        inputs=inputs,
        instead=instead,
        left_out=tuple(left_out),
        keeps_names=keep_names,
        executors={id_: runs for id_, runs in executors.items() if id_ in inputs},
        files=files,
        namespaces=namespaces,
    )


def _python_files(plugin: Path) -> list[Path]:
    """Return the .py files of a plugin: the file itself, or all files of a package folder. An installed module has
    none.
    """
    if plugin.is_dir():
        return sorted(plugin.rglob("*.py"))
    return [plugin] if plugin.suffix == ".py" else []


def _executor_of(op: ReplayOp, plugin_files: Mapping[str, str]) -> tuple[dict[str, Any], Path]:
    """Return (data that a script needs to run an op with a plugin's function, the plugin's file). Raises
    NotReplayable.
    """
    entry = EXECUTORS.find(op.called)
    if entry is not None and entry.program:
        raise NotReplayable(Reason("library missing", "runs through a tile program, which needs opreplay"))
    function = None if entry is None else inspect.unwrap(entry.function)
    code = getattr(function, "__code__", None)
    if entry is None or function is None or code is None or str(Path(code.co_filename).resolve()) not in plugin_files:
        raise NotReplayable(Reason("library missing", "runs through an executor of a plugin (--with-plugins)"))
    file = Path(code.co_filename)
    name = f"plugins/{file.name}"
    return {"file": name, "function": function.__name__, "line": code.co_firstlineno, "lists": entry.lists}, file


def _prepared(
    op: ReplayOp, registry: Registry, policy: Policy, seed: int, memory_bytes: int, *, from_plugin: bool = False
) -> tuple[ReplayOp, dict[str, list[Spec | None] | int], dict[str, Any] | None]:
    """Return (the op for the bundle, its inputs, another call for devices that have no kernel for the op or None).
    Raises NotReplayable.
    """
    find_overload(op, policy)
    if legacy_form(op.name, op.overload) is not None:
        call = called_instead(op)
        if call is None:
            raise NotReplayable(
                Reason("library missing", f"torch no longer has {op.name}, and no single op replaces it")
            )
        op = call
    if op.resolved_by == "equivalent" and op.name not in EQUIVALENTS and op.via is not None:
        op = msgspec.structs.replace(op, name=op.via, via=None, resolved_by="jit")  # renamed in torch
    if op.resolved_by == "reference":
        raise NotReplayable(
            Reason("library missing", "runs through opreplay's reference implementation, which is not in a bundle")
        )
    namespace = "aten" if op.resolved_by == "executor" else op.called.partition("::")[0]
    if namespace != "aten" and not from_plugin and namespace not in policy.allow_imports:
        what = (
            f"a bundle calls only ATen ops (for ops that a file defines with torch.library, add --plugin FILE.py "
            f"--with-plugins; for ops of a module, --allow-import {namespace}=MODULE)"
        )
        raise NotReplayable(Reason("library missing", what))
    described, specs, notes = describe(op, registry, seed=seed, memory_bytes=memory_bytes)
    described = msgspec.structs.replace(described, assumptions=described.assumptions + notes)
    inputs: dict[str, list[Spec | None] | int] = {**specs}
    if elements := budget.base_elements(op):
        inputs["*"] = elements
    substitute = None
    if op.resolved_by == "equivalent" and (call := called_instead(op)) is not None:
        call, theirs, _ = describe(call, registry, seed=seed, memory_bytes=memory_bytes)
        shown = {"name": call.name, "overload": call.overload, "args": msgspec.to_builtins(call.args)}
        substitute = {"op": shown, "inputs": theirs}
    return described, inputs, substitute


def _without_names(op: ReplayOp) -> ReplayOp:
    """Return the op without kernels, texts of other tools and notes. All of these may name parts of the model.

    If the op is replayed as another op, it gets that op's name. Its own name may belong to a private library.
    """
    name, via = (op.name, op.via) if op.resolved_by == "equivalent" else (op.called, None)
    recorded = msgspec.structs.replace(op.recorded, kernels=())
    assumptions = tuple(note for note in op.assumptions if not _names_something(op, note))
    return msgspec.structs.replace(
        op, name=name, via=via, recorded=recorded, assumptions=assumptions, origin=None, batch=None
    )


def _names_something(op: ReplayOp, note: Assumption) -> bool:
    private = op.name != op.called and op.name in note.what
    return private or ".py:" in note.what or any(kernel.name in note.what for kernel in op.recorded.kernels)
