"""Every call that reaches torch's dispatcher below autograd, in order, as ops of a plan; owns no step and no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.capture.calls import arguments as of_call
from opreplay.replay.capture.calls.arguments import tensors_in
from opreplay.replay.capture.calls.collectives import collective_of, group_name
from opreplay.replay.capture.calls.fakes import Fakes, keeps_real
from opreplay.replay.capture.calls.storages import Storages
from opreplay.replay.capture.calls.summed import Summed
from opreplay.replay.capture.calls.unwatched import Unwatched
from opreplay.replay.capture.calls.whereabouts import Whereabouts
from opreplay.replay.collectives.model import REDUCING
from opreplay.replay.ir.captured import LikeDevice, StepPhase
from opreplay.replay.ir.model import Assumption, Reason, Recorded, ReplayArg, ReplayOp
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES
from opreplay.replay.plan.collectives.recorded import same_work
from opreplay.replay.resolve.bind import checking_bounds
from opreplay.replay.resolve.gradient_mode import depends_on_gradients
from opreplay.replay.resolve.names import candidates
from opreplay.replay.resolve.policy import Policy, refuse_arguments, refuse_value
from opreplay.replay.resolve.schema import OpSpec, compile_schema, named_after_gaps
from opreplay.traces.model import TensorMeta

_NOT_RECORDED = Recorded(host_us_total=0.0, host_us_median=0.0)
_QUERIES = frozenset({"prim", "profiler"})
"""Namespaces of what asks for a tensor's device and the like."""
_SEEN_BELOW_AUTOGRAD = torch._C.DispatchKey.ADInplaceOrView
_DETACH = torch.ops.aten.detach.default
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
_KERNELS = ("CPU", "CUDA", "Meta")
_COMPOSED: dict[Any, bool] = {}
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

Look = Callable[[int, list[torch.Tensor], Any], None]
"""Told of each call: its number and tensor arguments before it runs (result None), and its results after it."""


class Recorder(TorchDispatchMode):
    """Records what runs while it is entered. What a tensor subclass does, it records as the calls that come of it."""

    def __init__(
        self,
        storages: Storages,
        where: Whereabouts,
        *,
        fakes: Fakes | None = None,
        look: Look | None = None,
        device: LikeDevice = "cpu",
    ) -> None:
        super().__init__()
        self._fakes = fakes
        self._storages, self._where, self._look = storages, where, look
        self._in_place = Summed(storages)
        self.unwatched = Unwatched(_decides_itself, fake=fakes is not None, device=device)
        self._ops: list[ReplayOp] = []
        self._counts: list[int] = []
        self._index: dict[Any, int] = {}
        self._slots: list[tuple[list[int], list[int]]] = []
        """Of each op: which tensor of the call each of its arguments and results is, -1 for a Python number."""
        self._specs: dict[Any, OpSpec] = {}
        self.calls: list[int] = []
        self.memories: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.phases: list[StepPhase] = []
        self.modules: list[int] = []
        self.outside: list[int] = []
        """Storages from outside in the order in which calls first take them."""
        self._taken: set[int] = set()
        self._gradients = False
        """Whether the call that runs is made with gradients on, for arguments that require them."""
        self.running: Any = None
        """The overload that runs, for errors."""

    @property
    def ops(self) -> tuple[ReplayOp, ...]:
        """Each unique op, in the order of first calls."""
        pairs = zip(self._ops, self._counts, strict=True)
        return tuple(msgspec.structs.replace(op, count=count) for op, count in pairs)

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _ADD and len(args) == 2 and not kwargs and self._in_place.is_summed_up(args[0], args[1]):
            func = _ADD_IN_PLACE
        named = dict(kwargs or {})
        if any(_decides_itself(kind) for kind in types):
            return NotImplemented
        if func.namespace in _QUERIES or (func is _DETACH and _is_hidden()):
            return func(*args, **named)
        if self._fakes is not None and not keeps_real(func):
            args = [self._fakes.of(value) for value in args]
            named = {name: self._fakes.of(value) for name, value in named.items()}
        if _is_composed(func):  # in inference mode nothing above has taken it apart
            with self:
                return func.decompose(*args, **named)
        func, args, named = self.unwatched.call(func, args, named, self._in_place.is_own)
        return self.call(func, args, named, self.unwatched.run_of(func))

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]) -> Any:
        """Run one call by `run`, and record it as one of `func`."""
        given = [tensor for value in (*args, *kwargs.values()) for tensor in tensors_in(value)]
        number = self._storages.call = len(self.calls)
        into = self._memories(given, outside=True)
        phase, module = self._where.now()
        metas = of_call.metas_of(given)
        values = (*args, *kwargs.items())
        self._gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        key = (
            func,
            self._gradients,
            tuple(metas),
            tuple(of_call.key_of_value(v) for v in values),
            group_name(func, args),
        )
        self.running = func
        if self._look is not None:
            self._look(number, given, None)
        returned = run(*args, **kwargs)
        made = list(tensors_in(returned))
        self._storages.grown(given if self._mutates(func) else ())
        self._in_place.made(made)
        out = self._memories(made, outside=False)
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self._ops)
            op = self._op(func, args, kwargs, given, metas, returned, getattr(run, "flops", None))
            self._ops.append(op)
            self._slots.append(_slots(op, of_call.named_values(self._spec(func), args, kwargs), given, returned))
            self._counts.append(0)
        self._counts[index] += 1
        self.calls.append(index)
        slots, results = self._slots[index]
        self.memories.append((tuple(into[at] if at >= 0 else -1 for at in slots), tuple(out[at] for at in results)))
        self.phases.append(phase)
        self.modules.append(module)
        if self._look is not None:
            self._look(number, given, returned)
        return returned

    def _memories(self, tensors: Iterable[torch.Tensor], *, outside: bool) -> tuple[int, ...]:
        found = []
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_nested:
                found.append(-1)
                continue
            found.append(self._storages.memory(tensor, outside=outside))
            if outside:
                storage = self._storages.number(tensor)
                if storage not in self._taken and self._storages.is_outside(storage):
                    self._taken.add(storage)
                    self.outside.append(storage)
        return tuple(found)

    def _spec(self, func: Any) -> OpSpec:
        found = self._specs.get(func)
        if found is None:
            found = self._specs[func] = compile_schema(func._schema)
        return found

    def _mutates(self, func: Any) -> bool:
        return any(arg.mutated for arg in self._spec(func).args)

    def _op(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Sequence[torch.Tensor],
        metas: Sequence[TensorMeta | None],
        returned: Any,
        counted: int | None,
    ) -> ReplayOp:
        """The op of a call that is the first one of its kind."""
        spec = self._spec(func)
        by_tensor = {id(tensor): meta for tensor, meta in zip(given, metas, strict=True)}
        made: list[ReplayArg] = []
        missing: list[str] = []
        assumed: list[Assumption] = []
        for arg, value in of_call.named_values(spec, args, kwargs):
            mine = [by_tensor[id(tensor)] for tensor in tensors_in(value)]
            one = None if None in mine else of_call.argument(arg, value, mine)
            if one is None:
                missing.append(arg.name)
                one = ReplayArg(name=arg.name, type="opaque", keyword_only=arg.keyword_only, mutated=arg.mutated)
            made.append(checking_bounds(one, assumed))
        made = list(named_after_gaps(spec, made))
        moved = collective_of(spec, args, kwargs, returned)
        if moved is not None and moved.kind in REDUCING and not moved.reduce_op:
            assumed.append(Assumption(argument="reduce_op", what="sum (not recorded)"))
        told = [spec.full_name, made, None if moved is None else same_work(moved)]
        identity = blake2b(msgspec.json.encode(told), digest_size=6).hexdigest()
        found = candidates(spec.name, Policy())
        reason = found.reason
        if func.namespace in COLLECTIVE_NAMESPACES:
            reason = Reason("collective", "" if moved is not None else "moves nothing itself, or does not say what")
        reason = reason or refuse_arguments(spec.name, [(arg.name, arg.type_text) for arg in spec.args])
        for arg in made:
            reason = reason or refuse_value(arg.name, arg.value)
        if reason is None and missing:
            reason = Reason("metadata missing", f"a plan holds no value of this kind: {', '.join(missing)}")
        return ReplayOp(
            id=identity,
            name=spec.name,
            count=1,
            recorded=_NOT_RECORDED,
            resolved_by="process group" if moved is not None else None if reason is not None else found.resolved_by,
            via=None if reason is not None else found.via,
            overload=spec.overload,
            schema=spec.text,
            args=tuple(made),
            outputs=_outputs(returned),
            reason=reason,
            assumptions=tuple(assumed),
            ranks=None if moved is None else moved.group_size,
            collective=moved,
            gradients=self._gradients and depends_on_gradients(spec.name, spec.overload),
            flops=counted if counted is not None else _flops(func, args, kwargs, returned),
        )


def _decides_itself(kind: type) -> bool:
    """Whether tensors of this type run calls of their own, as a DTensor does; fake ones do not."""
    from torch._subclasses.fake_tensor import FakeTensor

    if kind in _PLAIN_TYPES or issubclass(kind, FakeTensor):
        return False
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _is_composed(func: Any) -> bool:
    """Whether torch composes an op of others wherever it runs; one that has a kernel of its own is a call."""
    found = _COMPOSED.get(func)
    if found is None:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        name = func.name()
        found = has(name, "CompositeImplicitAutograd") and not any(has(name, key) for key in _KERNELS)
        _COMPOSED[func] = found
    return found


def _is_hidden() -> bool:
    """Whether a detach is torch's own, of a tensor that it keeps for backward: without a mode no op is dispatched.

    A user's comes from below autograd, whose keys are then switched off.
    """
    if torch.is_inference_mode_enabled():
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(_SEEN_BELOW_AUTOGRAD)


def _outputs(returned: Any) -> tuple[TensorMeta | None, ...] | None:
    """Metadata of the results, as `with_outputs` has them: lists flattened, None for what is no tensor."""
    items = list(flattened(returned))
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    metas = iter(of_call.metas_of(tensors))
    made = tuple(next(metas) if isinstance(item, torch.Tensor) else None for item in items)
    return tuple(meta and msgspec.structs.replace(meta, storage=None, storage_offset=0) for meta in made)


def _slots(
    op: ReplayOp, values: Sequence[tuple[Any, Any]], given: Sequence[torch.Tensor], returned: Any
) -> tuple[list[int], list[int]]:
    """Places among a call's tensors of those that the op's arguments have, -1 for a number; and those of its results.

    What is no tensor in the plan has no place.
    """
    places = {id(tensor): at for at, tensor in enumerate(given)}
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
    """By torch's own formula, where it has one."""
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return None
    try:
        return int(formula(*args, **kwargs, out_val=returned))
    except (TypeError, ValueError, AssertionError, IndexError):
        return None  # arguments that the formula does not know
