"""Captures graphs instead of running calls.

torch.export makes one graph; torch.compile passes one or several to its backend. Each node is recorded as one
op, even if torch would compose this op of others.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from opreplay.replay.arguments.operations import formulas
from opreplay.replay.capture.calls.fakes import Fakes
from opreplay.replay.capture.calls.module_tracker import ModuleTracker
from opreplay.replay.capture.calls.recorder import Recorder
from opreplay.replay.capture.step import Step
from opreplay.traces.errors import UsageError

_LOCAL = re.compile(r"^L\['\w+'\]\.?")
"""Prefix that Dynamo puts before module paths: the local variable that holds the model."""


class _Counted:
    """Runs a composite op and counts its FLOPs with the formulas of the ops that it calls."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.flops: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with FlopCounterMode(display=False, custom_mapping=formulas()) as counter:
            returned = self._function(*args, **kwargs)
        self.flops = counter.get_total_flops() or None
        return returned


class _Recorded(torch.fx.Interpreter):
    """Runs a graph node by node, and records each node that is an op."""

    def __init__(
        self, graph: torch.fx.GraphModule, recorder: Recorder, tracker: ModuleTracker, fakes: Fakes | None
    ) -> None:
        super().__init__(graph)
        self._recorder, self._tracker, self._fakes = recorder, tracker, fakes

    def run_node(self, n: torch.fx.Node) -> Any:
        with self._tracker.inside(_path(n)):
            return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(target, torch._ops.OpOverload):
            return super().call_function(target, args, kwargs)
        if self._fakes is not None:
            args, kwargs = self._fakes.of_call(args, kwargs)
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
        return self._recorder.call(target, args, kwargs, _Counted(target) if composed else target)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        # What checks the sizes of inputs is no part of the step.
        return None if str(target).startswith("_guards") else super().call_module(target, args, kwargs)


def run_exported(
    step: Step, recorder: Recorder, tracker: ModuleTracker, fakes: Fakes | None, *, decompose: bool
) -> Any:
    """Export the step and run its graph. With `decompose`, the graph is first decomposed to torch's core ops."""
    if step.trains or step.call is None:
        raise UsageError("torch.export supports a forward pass, not a training step", hint="Remove optimizer and loss.")
    module = step.call if isinstance(step.call, torch.nn.Module) else _Wrapped(step.call)
    return run_program(
        torch.export.export(module, step.args, dict(step.kwargs or {}), strict=False),
        step,
        recorder,
        tracker,
        fakes,
        decompose=decompose,
    )


def run_program(
    program: Any, step: Step, recorder: Recorder, tracker: ModuleTracker, fakes: Fakes | None, *, decompose: bool
) -> Any:
    """Run the graph of an exported program on the inputs of a step."""
    if decompose:
        with warnings.catch_warnings():
            # torch's own use of what it deprecates
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            program = program.run_decompositions()
    graph = program.module(check_guards=False)
    tracker.register(graph)
    inputs = pytree.tree_leaves((step.args, dict(step.kwargs or {})))
    with torch.no_grad():
        outputs = _Recorded(graph, recorder, tracker, fakes).run(*inputs, enable_io_processing=False)
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def step_of_file(path: str) -> Callable[[], Step]:
    """Return a function that creates the step of a file from `torch.export.save`.

    The step runs the file's graph on its example inputs. Loading a file executes its contents: pickles of inputs,
    weights and constants, conditions on sizes, names of modules. So only load files that the user trusts. Raises
    UsageError if torch cannot load the file, or if the file has no example inputs.
    """
    log = logging.getLogger("torch.export")
    before = log.level
    log.setLevel(logging.CRITICAL)  # it tells, with a traceback, what is raised here
    try:
        program = torch.export.load(path)
        module = program.module(check_guards=False)
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise UsageError(f"{path} is not an exported program: {why}", hint="torch.export.save writes one.") from error
    finally:
        log.setLevel(before)
    match program.example_inputs:
        case (tuple(args), dict(kwargs)):
            pass
        case _:
            raise UsageError(f"{path} contains no example inputs", hint="Export and save it again with example inputs.")

    def make() -> Step:
        return Step(run=lambda: None, inputs=args, call=module, args=args, kwargs=kwargs, program=program)

    return make


class Compiled:
    """Runs a step with torch.compile and records its graphs. Code outside the graphs runs but is not recorded."""

    def __init__(self, recorder: Recorder, tracker: ModuleTracker) -> None:
        self._recorder, self._tracker = recorder, tracker
        self.graphs = 0
        """Number of forward graphs."""
        self.breaks: tuple[str, ...] = ()

    def run(self, step: Step) -> Any:
        """Compile and run the step. Exceptions of the step propagate."""
        dynamo: Any = import_module("torch._dynamo")
        common: Any = import_module("torch._dynamo.backends.common")
        counters: Any = import_module("torch._dynamo.utils").counters
        dynamo.reset()
        counters.clear()
        backend = common.aot_autograd(fw_compiler=self._forward, bw_compiler=self._recording)
        if step.root is not None and step.call is step.root:
            step.root.compile(backend=backend)
            returned = step.run()
        else:
            returned = torch.compile(step.run, backend=backend)()
        self.breaks = tuple(" ".join(str(reason).split())[:300] for reason in counters["graph_break"])
        dynamo.reset()
        return returned

    def _forward(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return self._recording(graph, inputs)

    def _recording(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        boxed: Any = import_module("functorch.compile").make_boxed_func

        def run(*inputs: Any) -> Any:
            return _Recorded(graph, self._recorder, self._tracker, None).run(*inputs)

        return boxed(run)


class _Wrapped(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def _path(node: torch.fx.Node) -> str | None:
    """Return the path of the innermost module that a graph node comes from; None if unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    return _LOCAL.sub("", str(list(stack.values())[-1][0]))
