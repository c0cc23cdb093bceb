"""Replaces real tensors in a step by fake ones and leaves the real ones unchanged.

Torch's own fake mode is not sufficient: if all tensors of an op are real, it runs the op on the real data. It would
thus write to the user's parameters.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from opreplay.replay.capture.calls.arguments import is_dense, of_numbers, tensors_in
from opreplay.replay.capture.calls.patching import replaced
from opreplay.traces.errors import UsageError

_LIFTS = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})
"""Ops that create a tensor from Python numbers. A fake tensor can keep these numbers only if it sees the call of such
an op.
"""


_MAX_KNOWN = 1 << 18
"""Maximum number of elements of a tensor whose values are tracked, e.g. positions, masks and ranges."""
_aten: Any = torch.ops.aten
_KNOWN_SOURCES = frozenset(
    getattr(_aten, name)
    for name in ("arange", "linspace", "full", "zeros", "ones", "eye", "scalar_tensor", "tril_indices", "triu_indices")
)
_UNINITIALIZED = ("empty", "new_empty", "resize", "set_")
_SUMMARIES, _SAYS_NO = (_aten.all.default, _aten.any.default), (_aten.isnan.default, _aten.isinf.default)
_LOOKS = frozenset((*_SUMMARIES, *_SAYS_NO, _aten.eq.Scalar, _aten.ne.Scalar, _aten.eq.Tensor, _aten.mul.Tensor))
"""Calls that belong to a check for non-finite numbers."""
_FINITE = "if the step checks for non-finite numbers, it is assumed to find none"
_GROUPED_MM: Any = getattr(getattr(_aten, "_grouped_mm", None), "default", None)
"""The `_grouped_mm` overload; None in old versions of torch."""
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten._reshape_alias.default)


class _Corrected(TorchDispatchMode):
    """Corrects calls that fail on fake tensors but not on real ones, or for which fake and real kernels differ."""

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()
        self._fakes = fakes
        self.constructing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            known = self._fakes.known.of(args[0])
            if known is not None:
                with _disable_current_modes():
                    return known.item()
            if self.constructing and args[0].dtype == torch.bool and getattr(args[0], "constant", None) is None:
                return False  # rejection sampling asks whether a draw is left: not of one that holds nothing
        try:
            returned = self._called(func, args, kwargs)
        except DynamicOutputShapeException:
            real = self._fakes.known.computed(func, args, kwargs)
            if real is None:
                raise
            return tree_map_only(torch.Tensor, self._fakes.followed, real)
        self._fakes.known.follow(func, args, kwargs, returned)
        return returned

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is _GROUPED_MM and args[0].dtype not in (torch.bfloat16, None):
            # torch 2.13 checks bfloat16, which its kernels do not need; sizes and strides are the same.
            return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).to(args[0].dtype)
        if func is _aten.index.Tensor:
            args = (args[0], [part for index in args[1] for part in self._places(index)])
        returned = func(*args, **kwargs)
        if isinstance(returned, torch.Tensor) and returned.layout is torch.sparse_coo:
            raise UsageError(
                f"{func.name()} creates a sparse tensor, whose number of elements depends on values",
                hint=(
                    "Use --real to run the step on real tensors, or use dense tensors (sparse=False of an embedding)."
                ),
            )
        if func is _aten.mkldnn_rnn_layer_backward.default:  # the fake kernel gives one gradient to both biases
            return (*returned[:4], returned[4].clone(), *returned[5:])
        if func is _aten.native_layer_norm_backward.default and returned[0] is not None:
            return (returned[0].contiguous(), *returned[1:])  # whatever the layout of its gradient
        if func is _aten.native_batch_norm.default:  # statistics of 16-bit values have the weight's type
            kind = returned[1].dtype if args[1] is None else args[1].dtype
            return (_dense(returned[0], args[0]), *(saved.to(kind) for saved in returned[1:]))
        if func is _aten.native_batch_norm_backward.default and returned[0] is not None:
            return (_dense(returned[0], args[1]), *returned[1:])
        if func in _VIEWS and 1 in returned.shape:
            # Fake views give dimensions of one element other strides, by which channels-last is told.
            stride = args[2] if func is _VIEWS[2] else _view_strides(args[0].shape, args[0].stride(), returned.shape)
            if tuple(stride) != returned.stride():
                return _aten.as_strided.default(returned, returned.shape, stride, returned.storage_offset())
        return returned

    def _places(self, index: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        """Return the index. For a mask with known values, return the indices of its True elements instead."""
        real = None if index is None or index.dtype is not torch.bool else self._fakes.known.of(index)
        if real is None:
            return (index,)
        with _disable_current_modes():
            places = real.nonzero(as_tuple=True)
        return [self._fakes.followed(place) for place in places]


def _dense(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a result in the layout that kernels produce: channels-last if `like` has it, otherwise contiguous."""
    return result.contiguous(memory_format=suggest_memory_format(like))


@lru_cache(maxsize=4096)
def _view_strides(shape: Sequence[int], stride: Sequence[int], size: Sequence[int]) -> Sequence[int]:
    with _disable_current_modes():
        return torch.empty_strided(shape, stride, device="meta").view(size).stride()


class _Known:
    """Values of fake tensors that depend neither on inputs nor on random numbers, such as positions, ranges and masks
    for a length.
    """

    def __init__(self) -> None:
        self._real: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._answers: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Result tensor of an elementwise finiteness test → what the test returns for a finite element."""
        self.notes: tuple[str, ...] = ()
        """Assumptions about values."""

    def of(self, tensor: Any) -> torch.Tensor | None:
        """Return a tensor's values; None if they are unknown."""
        return self._real.get(tensor) if isinstance(tensor, FakeTensor) else None

    def forget(self, *tensors: torch.Tensor) -> None:
        """Drop the known values of these tensors."""
        for tensor in tensors:
            self._real.pop(tensor, None)

    def follow(self, func: Any, args: Any, kwargs: Any, returned: Any) -> None:
        """Track the known values through a call that has been made.

        If all inputs of the call are known, its result is computed. Otherwise, known values that the call overwrites
        are dropped.
        """
        tensors = list(tensors_in((*args, *kwargs.values())))
        if tensors and not is_lift(func) and func not in _LOOKS and not any(tensor in self._real for tensor in tensors):
            return
        results = tree_leaves(returned)
        real = self.computed(func, args, kwargs) if all(map(_is_small, results)) else None
        if real is None and func in _LOOKS:
            real = self._of_finite_numbers(func, args, returned)
        if real is None:
            if func._schema.is_mutable:
                known = [self._real[tensor] for tensor in tensors if tensor in self._real]
                self._overwrite({value.untyped_storage()._cdata for value in known})
            return
        for fake, value in zip(results, tree_leaves(real), strict=True):
            self.add(fake, value)

    def add(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Record the values of a fake tensor."""
        self._real[fake] = real

    def computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return a call's result computed from known values. None if some inputs are unknown, if the op is random, or
        if it returns uninitialized memory.
        """
        tensors = list(tensors_in((*args, *kwargs.values())))
        if is_lift(func):
            with _disable_current_modes():
                values = iter(list(map(torch.clone, tensors)))
        elif tensors:
            if not all(tensor in self._real for tensor in tensors):
                return None
            values = iter([self._real[tensor] for tensor in tensors])
        elif func.overloadpacket in _KNOWN_SOURCES:
            values = iter(())
        else:
            return None
        if torch.Tag.nondeterministic_seeded in func.tags or func.__name__.startswith(_UNINITIALIZED):
            return None
        with _disable_current_modes(), torch.no_grad():
            args, kwargs = tree_map_only(torch.Tensor, lambda _: next(values), (args, kwargs))
            if "device" in kwargs:
                kwargs["device"] = torch.device("cpu")
            return func(*args, **kwargs)

    def _of_finite_numbers(self, func: Any, args: Any, returned: Any) -> torch.Tensor | None:
        """Return the result of `all` or `any` in a check for non-finite numbers.

        All numbers are assumed to be finite, as in a working step. The other calls of the check are tracked too,
        because `isfinite` consists of four calls.
        """
        answer = self._answers.get(args[0]) if isinstance(args[0], torch.Tensor) else None
        if answer is not None and func in _SUMMARIES:
            self.notes = (_FINITE,)
            with _disable_current_modes():
                return torch.tensor(answer)
        if func in _SAYS_NO or (func is _aten.eq.Scalar and args[1] == math.inf):
            self._answers[returned] = False
        elif (
            (func is _aten.ne.Scalar and args[1] == math.inf)
            or (func is _aten.eq.Tensor and args[0] is args[1])
            or (func is _aten.mul.Tensor and answer and isinstance(args[1], FakeTensor) and self._answers.get(args[1]))
        ):
            self._answers[returned] = True
        return None

    def _overwrite(self, storages: Set[int]) -> None:
        """Drop the values of all tensors in these storages, because their contents are now unknown."""
        for fake, real in list(self._real.items()):
            if real.untyped_storage()._cdata in storages:
                del self._real[fake]


def _is_small(result: Any) -> bool:
    return isinstance(result, FakeTensor) and result.numel() <= _MAX_KNOWN


class Fakes:
    """Creates one fake tensor for each real tensor; fake tensors share storages as the real tensors do."""

    def __init__(self) -> None:
        # Real tensors never get there: `of` stands before.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._real: list[torch.Tensor] = []
        """Real tensors, kept alive so that a new tensor cannot get the id of an old one."""
        self._fake_by_id: dict[int, torch.Tensor] = {}
        self._corrected = _Corrected(self)
        self.known = _Known()

    @contextmanager
    def constructing(self) -> Generator[None, None, None]:
        """Context for building a model. Weights have no values, and initializers do not read them."""
        self._corrected.constructing = True
        try:
            yield
        finally:
            self._corrected.constructing = False

    def followed(self, real: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor for `real`; its known values are those of `real`."""
        fake = self.mode.from_tensor(real, static_shapes=True)
        self.known.add(fake, real)
        return fake

    def _with_constant(self, fake: Any, real: torch.Tensor) -> torch.Tensor:
        fake.constant = real
        self.mode.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake

    @contextmanager
    def entered(self) -> Generator[None, None, None]:
        """Context that enters the fake mode. In it, modules can be moved and cast; torch refuses this for parameters in
        the mode's memo.
        """
        utils: Any = torch.utils
        plain = utils.swap_tensors

        def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> Any:
            memo = self.mode.fake_tensor_converter.meta_converter.tensor_memo
            self.known.forget(first, second)
            for key in [key for key, known in list(memo.items()) if known is first or known is second]:
                del memo[key]
            return plain(first, second)

        each: Any = FakeTensor.tolist

        def tolist(tensor: FakeTensor) -> Any:
            known = self.known.of(tensor)
            if known is None:
                return each(tensor)
            with _disable_current_modes():
                return known.tolist()

        with (
            replaced(utils, swap_tensors=swap_tensors),
            replaced(torch, tensor=of_numbers(torch.tensor)),
            replaced(FakeTensor, tolist=tolist),
            replaced(fake_tensor.log, disabled=True),  # it prints, with a traceback, what is raised here
            self.mode,
            self._corrected,
            warnings.catch_warnings(),
        ):
            # Copying a fake module asks for addresses, by which torch tells copies apart; nothing reads there.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield

    @contextmanager
    def taken_for_real(self) -> Generator[None, None, None]:
        """Context for running a step. Libraries that detect fake tensors treat them like real ones in it, if
        possible.
        """
        foreach: Any = import_module("torch.utils._foreach_utils")
        transformers = sys.modules.get("transformers.utils.import_utils")

        def is_fake_tensor(value: Any) -> bool:
            return isinstance(value, FakeTensor) and self.known.of(value) is None

        with ExitStack() as stack:
            types = [*foreach._foreach_supported_types, FakeTensor]
            stack.enter_context(replaced(foreach, _foreach_supported_types=types))
            if hasattr(transformers, "is_fake_tensor"):
                stack.enter_context(replaced(transformers, is_fake_tensor=is_fake_tensor))
            yield

    def of(self, value: Any) -> Any:
        """Return an argument with real tensors replaced by fake ones, also in lists."""
        if isinstance(value, torch.Tensor):
            return value if isinstance(value, FakeTensor) else self._of(value)
        if type(value) in (list, tuple) and any(isinstance(item, torch.Tensor | list | tuple) for item in value):
            return type(value)(self.of(item) for item in value)
        return value

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call with real tensors replaced by fake ones."""
        return [self.of(value) for value in args], {name: self.of(value) for name, value in kwargs.items()}

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = self._fake_by_id.get(id(tensor))
        if fake is None:
            with _disable_current_modes():
                plain = tensor.detach()
                small = tensor.numel() == 1 and tensor.device.type == "cpu" and is_dense(tensor)
                constant = plain.clone() if small else None
                fake = self._fake_by_id[id(tensor)] = self.mode.from_tensor(plain, static_shapes=True)
            self._real.append(tensor)
            if constant is not None:
                self._with_constant(fake, constant)  # an optimizer asks for the number of its step
        return fake


def is_lift(func: Any) -> bool:
    """Check whether a call creates a tensor from Python numbers. If so, it must get the real tensor."""
    return func.namespace == "aten" and func._schema.name.partition("::")[2] in _LIFTS
