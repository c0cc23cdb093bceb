"""Records every call that reaches torch's dispatcher below autograd, in order, as ops of a plan.

Runs no step and writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.capture.calls import arguments as of_call
from opreplay.replay.capture.calls.arguments import tensors_in
from opreplay.replay.capture.calls.collectives import collective_of, group_name
from opreplay.replay.capture.calls.fakes import Fakes, is_lift
from opreplay.replay.capture.calls.module_tracker import ModuleTracker
from opreplay.replay.capture.calls.storages import Storages
from opreplay.replay.capture.calls.summed import Summed
from opreplay.replay.capture.calls.without_mode import WithoutMode
from opreplay.replay.collectives.model import REDUCING
from opreplay.replay.ir.captured import LikeDevice, StepPhase
from opreplay.replay.ir.model import NOT_RECORDED, Assumption, Reason, ReplayArg, ReplayOp
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES
from opreplay.replay.plan.collectives.recorded import same_work
from opreplay.replay.resolve.bind import checking_bounds
from opreplay.replay.resolve.gradient_mode import depends_on_gradients
from opreplay.replay.resolve.names import candidates
from opreplay.replay.resolve.policy import Policy, refuse_arguments, refuse_value
from opreplay.replay.resolve.schema import OpSpec, compile_schema, named_after_gaps
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

_QUERIES = frozenset({"prim", "profiler"})
"""Namespaces of ops that only query something, such as a tensor's device."""
_SEEN_BELOW_AUTOGRAD = torch._C.DispatchKey.ADInplaceOrView
_DETACH, _DETACH_IN_PLACE = torch.ops.aten.detach.default, torch.ops.aten.detach_.default
_EMPTY = torch.ops.aten.empty.memory_format
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
_KERNELS = ("CPU", "CUDA", "Meta")
_COMPOSED: dict[Any, bool] = {}
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

Look = Callable[[int, list[torch.Tensor], Any], None]
"""Function that is called before and after each recorded call, with the call's number, its tensor arguments and its
results. Before the call, the results are None.
"""


class Recorder(TorchDispatchMode):
    """Records calls while it is active. An operation on a tensor subclass is recorded as the calls that the subclass
    makes.
    """

    supports_higher_order_operators = True
    """Tells torch to pass higher-order operators to this mode, which raises UsageError for them."""

    def __init__(
        self,
        storages: Storages,
        tracker: ModuleTracker,
        *,
        fakes: Fakes | None = None,
        look: Look | None = None,
        device: LikeDevice = "cpu",
    ) -> None:
        super().__init__()
        self._fakes = fakes
        self._storages, self._tracker, self._look = storages, tracker, look
        self._in_place = Summed(storages)
        self.without_mode = WithoutMode(_decides_itself, fake=fakes is not None, device=device)
        self._ops: list[ReplayOp] = []
        self._counts: list[int] = []
        self._index: dict[Any, int] = {}
        self._slots: list[tuple[list[int], list[int]]] = []
        """For each op, two lists of indices into a call's tensors: of the op's tensor arguments (-1 for a Python
        number), and of its results.
        """
        self._specs: dict[Any, OpSpec] = {}
        self.calls: list[int] = []
        self.memories: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.phases: list[StepPhase] = []
        self.modules: list[int] = []
        self.outside: list[int] = []
        """Storages that existed before the step, in the order in which calls first use them."""
        self._taken: set[int] = set()
        self._gradients = False
        """Whether the running call is made with gradients enabled and has arguments that require them."""
        self.running: Any = None
        """The overload that is running, for error messages."""

    @property
    def ops(self) -> tuple[ReplayOp, ...]:
        """All unique ops, in the order of their first calls."""
        pairs = zip(self._ops, self._counts, strict=True)
        return tuple(msgspec.structs.replace(op, count=count) for op, count in pairs)

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            raise UsageError(
                f"{func.name()} gets a function of the model as argument, which a plan cannot hold",
                hint="Write it with plain calls, such as scaled_dot_product_attention.",
            )
        func = self._in_place_where_summed(func, args, kwargs)
        named = dict(kwargs or {})
        if any(map(_decides_itself, types)):
            return NotImplemented
        if _is_internal(func) or (func is _DETACH and self.without_mode.packing):
            return func(*args, **named)
        if self._fakes is not None and not is_lift(func):
            args, named = self._fakes.of_call(args, named)
        if _is_composed(func):  # in inference mode nothing above has taken it apart
            with self:
                return func.decompose(*args, **named)
        return self._recorded(func, args, named)

    def _in_place_where_summed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        is_sum = func is _ADD and not kwargs and self._in_place.is_summed_up(args[0], args[1])
        return _ADD_IN_PLACE if is_sum else func

    def _recorded(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Run a call that is not composed of other calls, and record it. A call that only recreates an existing view is
        not recorded.
        """
        views = self.without_mode.views
        if self._fakes is not None and args and views.is_again(func, args):
            return func(*args, **named)
        func, args, named = self.without_mode.call(func, args, named, self._in_place.is_own)
        if is_lift(func):
            return self._lifted(func, args, named)
        returned = self.call(func, args, named, self.without_mode.run_of(func))
        if self._fakes is not None and args:
            views.add(func, args, returned)
        return returned

    def _lifted(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Record the creation of a tensor from Python numbers. This includes the allocation and the detach, which no
        mode sees.
        """
        like: torch.Tensor = args[0]
        detached = self.without_mode.makes_tensor
        if like.untyped_storage().resizable() and (like.dim() or detached):  # neither numpy's nor x[0] = 1
            options = {"dtype": like.dtype, "layout": like.layout, "device": like.device, "pin_memory": False}
            self.call(_EMPTY, (list(like.shape),), options, _EMPTY)
        lifted = self.call(func, args, named, func)
        return self.call(_DETACH_IN_PLACE, (lifted,), {}, lambda tensor: tensor) if detached else lifted

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]) -> Any:
        """Make one call by calling `run`, and record it as a call of `func`."""
        inputs = list(tensors_in((*args, *kwargs.values())))
        number = self._storages.call = len(self.calls)
        into = self._memories(inputs, outside=True)
        phase, module = self._tracker.phase_and_module()
        metas = of_call.metas_of(inputs)
        self._gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        values = of_call.key_of_value((*args, *kwargs.items()))
        key = (func, self._gradients, tuple(metas), values, group_name(func, args))
        self.running = func
        if self._look is not None:
            self._look(number, inputs, None)
        returned = run(*args, **kwargs)
        outputs = list(tensors_in(returned))
        self._storages.grown(inputs if self._mutates(func) else ())
        self._in_place.add(outputs)
        out = self._memories(outputs, outside=False)
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self._ops)
            op = self._op(func, args, kwargs, inputs, metas, returned, getattr(run, "flops", None))
            self._ops.append(op)
            self._slots.append(_slots(op, of_call.named_values(self._spec(func), args, kwargs), inputs, returned))
            self._counts.append(0)
        self._counts[index] += 1
        self.calls.append(index)
        slots, results = self._slots[index]
        self.memories.append((tuple(into[at] if at >= 0 else -1 for at in slots), tuple(out[at] for at in results)))
        self.phases.append(phase)
        self.modules.append(module)
        if self._look is not None:
            self._look(number, inputs, returned)
        return returned

    def _memories(self, tensors: Iterable[torch.Tensor], *, outside: bool) -> tuple[int, ...]:
        memories = []
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_nested:
                memories.append(-1)
                continue
            memories.append(self._storages.memory(tensor, outside=outside))
            if outside:
                storage = self._storages.number(tensor)
                if storage not in self._taken and self._storages.is_outside(storage):
                    self._taken.add(storage)
                    self.outside.append(storage)
        return tuple(memories)

    def _spec(self, func: Any) -> OpSpec:
        spec = self._specs.get(func)
        if spec is None:
            spec = self._specs[func] = compile_schema(func._schema)
        return spec

    def _mutates(self, func: Any) -> bool:
        return any(arg.mutated for arg in self._spec(func).args)

    def _op(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
        metas: Sequence[TensorMeta | None],
        returned: Any,
        flops: int | None,
    ) -> ReplayOp:
        """Create the plan's op for a call that is the first of its kind."""
        spec = self._spec(func)
        meta_by_tensor = {id(tensor): meta for tensor, meta in zip(inputs, metas, strict=True)}
        replay_args: list[ReplayArg] = []
        missing: list[str] = []
        assumptions: list[Assumption] = []
        for arg, value in of_call.named_values(spec, args, kwargs):
            arg_metas = [meta_by_tensor[id(tensor)] for tensor in tensors_in(value)]
            replay_arg = None if None in arg_metas else of_call.argument(arg, value, arg_metas)
            if replay_arg is None:
                missing.append(arg.name)
                replay_arg = ReplayArg(name=arg.name, type="opaque", keyword_only=arg.keyword_only, mutated=arg.mutated)
            replay_args.append(checking_bounds(replay_arg, assumptions))
        replay_args = list(named_after_gaps(spec, replay_args))
        collective = collective_of(spec, args, kwargs, returned)
        if collective is not None and collective.kind in REDUCING and not collective.reduce_op:
            assumptions.append(Assumption(argument="reduce_op", what="sum (not recorded)"))
        identity = [spec.full_name, replay_args, None if collective is None else same_work(collective)]
        resolution = candidates(spec.name, Policy())
        reason = _refusal(spec, resolution.reason, replay_args, missing)
        if func.namespace in COLLECTIVE_NAMESPACES:
            reason = Reason(
                "collective", "" if collective else "moves no data itself, or does not show which data it moves"
            )
        op = ReplayOp(
            id=blake2b(msgspec.json.encode(identity), digest_size=6).hexdigest(),
            name=spec.name,
            count=1,
            recorded=NOT_RECORDED,
            overload=spec.overload,
            schema=spec.text,
            args=tuple(replay_args),
            outputs=_outputs(returned),
            reason=reason,
            assumptions=tuple(assumptions),
            gradients=self._gradients and depends_on_gradients(spec.name, spec.overload),
            flops=flops if flops is not None else _flops(func, args, kwargs, returned),
        )
        if collective is not None:
            return msgspec.structs.replace(
                op, resolved_by="process group", ranks=collective.group_size, collective=collective
            )
        if reason is not None:
            return op
        return msgspec.structs.replace(op, resolved_by=resolution.resolved_by, via=resolution.via)


def _refusal(
    spec: OpSpec, unresolved: Reason | None, args: Sequence[ReplayArg], missing: Sequence[str]
) -> Reason | None:
    """Return the reason why an op cannot be replayed. `missing` names the arguments whose values a plan cannot hold."""
    reason = unresolved or refuse_arguments(spec.name, [(arg.name, arg.type_text) for arg in spec.args])
    for arg in args:
        reason = reason or refuse_value(arg.name, arg.value)
    if reason is None and missing:
        return Reason("metadata missing", f"a plan cannot hold a value of this kind: {', '.join(missing)}")
    return reason


def _decides_itself(kind: type) -> bool:
    """Check whether tensors of this type handle `__torch_dispatch__` themselves, as a DTensor does. The result is False
    for fake tensors.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if kind in _PLAIN_TYPES or issubclass(kind, FakeTensor):
        return False
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _is_composed(func: Any) -> bool:
    """Check whether torch composes an op of other ops on every device. An op that has its own kernel on some device is
    not composed; it counts as one call.
    """
    composed = _COMPOSED.get(func)
    if composed is None:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        name = func.name()
        composed = has(name, "CompositeImplicitAutograd") and not any(has(name, key) for key in _KERNELS)
        _COMPOSED[func] = composed
    return composed


def _is_internal(func: Any) -> bool:
    """Check whether a call is not part of the step.

    Such a call is a query, or a detach by which torch itself saves a tensor for backward. Torch's own detach is
    dispatched only because a mode is active. The autograd keys distinguish it from a user's detach: this one arrives
    from below autograd, where the keys are excluded.
    """
    if func is not _DETACH or torch.is_inference_mode_enabled():
        return func.namespace in _QUERIES
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(_SEEN_BELOW_AUTOGRAD)


def _outputs(returned: Any) -> tuple[TensorMeta | None, ...] | None:
    """Return metadata of the results as `with_outputs` expects it: lists flattened, None for results that are not
    tensors.
    """
    items = list(flattened(returned))
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    metas = iter(of_call.metas_of(tensors))
    outputs = tuple(next(metas) if isinstance(item, torch.Tensor) else None for item in items)
    return tuple(meta and msgspec.structs.replace(meta, storage=None, storage_offset=0) for meta in outputs)


def _slots(
    op: ReplayOp, values: Sequence[tuple[Any, Any]], inputs: Sequence[torch.Tensor], returned: Any
) -> tuple[list[int], list[int]]:
    """Return two lists of indices into a call's tensors: for the op's tensor arguments, and for its results.

    If an argument is a Python number in place of a tensor, its index is -1. Values that are no tensors in the plan have
    no entry.
    """
    places = {id(tensor): at for at, tensor in enumerate(inputs)}
    slots: list[int] = []
    for arg, (_, value) in zip(op.args, values, strict=True):
        if arg.value is not None and arg.tensors:
            slots.append(-1)
        elif arg.tensors:
            slots += [places[id(tensor)] for tensor in tensors_in(value)]
    results: list[int] = []
    tensors = 0
    for item, meta in zip(flattened(returned), op.outputs or (), strict=True):
        if meta is not None:
            results.append(tensors)
        tensors += isinstance(item, torch.Tensor)
    return slots, results


def _flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> int | None:
    """Return a call's FLOPs by one of the project's `formulas`, or else by a formula registered with torch. None if
    there is no formula.
    """
    from torch.utils.flop_counter import flop_registry

    from opreplay.replay.arguments.operations import formulas

    formula = {**flop_registry, **formulas()}.get(func._overloadpacket)
    if formula is None:
        return None
    try:
        return int(formula(*args, **kwargs, out_val=returned))
    except (TypeError, ValueError, AssertionError, IndexError):
        return None  # arguments that the formula does not know
