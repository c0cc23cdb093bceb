"""Fake tensors in place of the real ones that a step meets; the real ones stay as they are.

torch's own mode runs an op for real where all its tensors are: it would write to the user's parameters.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from opreplay.replay.capture.calls.arguments import is_dense
from opreplay.replay.capture.calls.patching import replaced
from opreplay.traces.errors import UsageError

_LIFTS = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})
"""How a tensor of Python's numbers comes to be; fake tensors remember its value only if they see it made."""


_MAX_KNOWN = {True: 1024, False: 1 << 20}
"""Elements of a tensor whose values are followed, by whether they are floats: positions, masks, ranges."""
_aten: Any = torch.ops.aten
_KNOWN_SOURCES = frozenset(
    getattr(_aten, name)
    for name in ("arange", "linspace", "full", "zeros", "ones", "eye", "scalar_tensor", "tril_indices", "triu_indices")
)
_UNINITIALIZED = ("empty", "new_empty", "resize", "set_")
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten._reshape_alias.default)


class _Corrected(TorchDispatchMode):
    """Calls that torch's fake tensors refuse though the step runs, or answer otherwise than kernels do."""

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
        returned = self._called(func, args, kwargs)
        self._fakes.known.follow(func, args, kwargs, returned)
        return returned

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is _aten._grouped_mm.default and args[0].dtype not in (torch.bfloat16, None):
            # torch 2.13 checks bfloat16, which its kernels do not need; sizes and strides are the same.
            return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).to(args[0].dtype)
        returned = func(*args, **kwargs)
        if isinstance(returned, torch.Tensor) and returned.layout is torch.sparse_coo:
            raise UsageError(
                f"{func.name()} makes a sparse tensor, whose number of elements follows from values",
                hint="--real runs it once on real tensors; or use dense ones (sparse=False of an embedding).",
            )
        if func is _aten.mkldnn_rnn_layer_backward.default:  # the fake kernel gives one gradient to both biases
            return (*returned[:4], returned[4].clone(), *returned[5:])
        if func is _aten.native_layer_norm_backward.default and returned[0] is not None:
            return (returned[0].contiguous(), *returned[1:])  # whatever the layout of its gradient
        if func is _aten.native_batch_norm.default and args[1] is not None and returned[1].dtype != args[1].dtype:
            return (
                returned[0],
                *(saved.to(args[1].dtype) for saved in returned[1:]),
            )  # of 16-bit values, under autocast
        if func in _VIEWS and 1 in returned.shape:
            # Fake views give dimensions of one element other strides, by which channels-last is told.
            stride = args[2] if func is _VIEWS[2] else _view_strides(args[0], returned.shape)
            if tuple(stride) != returned.stride():
                return _aten.as_strided.default(returned, returned.shape, stride, returned.storage_offset())
        return returned


def _view_strides(tensor: torch.Tensor, size: Sequence[int]) -> Sequence[int]:
    with _disable_current_modes():
        return torch.empty_strided(tensor.shape, tensor.stride(), device="meta").view(size).stride()


class _Known:
    """Values of fake tensors that follow from no input and no draw: positions, masks of a length, ranges."""

    def __init__(self) -> None:
        self._real: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._overwritten: list[torch.UntypedStorage] = []
        """Storages that hold what nobody knows, alive: an address is used again."""

    def of(self, tensor: Any) -> torch.Tensor | None:
        """The values, None where nobody knows them."""
        real = self._real.get(tensor) if isinstance(tensor, FakeTensor) else None
        if real is None or any(real.untyped_storage()._cdata == each._cdata for each in self._overwritten):
            return None
        return real

    def forget(self, *tensors: torch.Tensor) -> None:
        """Hold no reference to tensors."""
        for tensor in tensors:
            self._real.pop(tensor, None)

    def follow(self, func: Any, args: Any, kwargs: Any, returned: Any) -> None:
        """Compute what a call gave where all that it takes is known, and forget what it overwrites where it is not."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        with _disable_current_modes():
            real = [tensor.clone() if is_lift(func) else self.of(tensor) for tensor in tensors]
        known = func.overloadpacket in _KNOWN_SOURCES if not tensors else all(value is not None for value in real)
        random = torch.Tag.nondeterministic_seeded in func.tags or func.__name__.startswith(_UNINITIALIZED)
        results = tree_leaves(returned)
        if not known or random or not all(map(_is_small, results)):
            if func._schema.is_mutable:
                self._overwritten += [value.untyped_storage() for value in real if value is not None]
            return
        values = iter(real)
        with _disable_current_modes(), torch.no_grad():
            args, kwargs = tree_map_only(torch.Tensor, lambda _: next(values), (args, kwargs))
            if "device" in kwargs:
                kwargs["device"] = torch.device("cpu")
            for fake, value in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
                self._real[fake] = value


def _is_small(result: Any) -> bool:
    return isinstance(result, FakeTensor) and result.numel() <= _MAX_KNOWN[result.is_floating_point()]


class Fakes:
    """One fake tensor for each real one, with storages shared as the real ones share them."""

    def __init__(self) -> None:
        # Real tensors never get there: `of` stands before.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._real: list[torch.Tensor] = []
        """Real tensors, alive as long as others would be taken for them."""
        self._fake_by_id: dict[int, torch.Tensor] = {}
        self._corrected = _Corrected(self)
        self.known = _Known()

    @contextmanager
    def constructing(self) -> Generator[None, None, None]:
        """While a model is made: its weights hold nothing, and what initialises them asks nothing of them."""
        self._corrected.constructing = True
        try:
            yield
        finally:
            self._corrected.constructing = False

    def _with_constant(self, fake: Any, real: torch.Tensor) -> torch.Tensor:
        fake.constant = real
        self.mode.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake

    @contextmanager
    def entered(self) -> Generator[None, None, None]:
        """The mode, with modules that can be moved and cast: torch refuses where its own memo knows the parameter."""
        utils: Any = torch.utils
        plain = utils.swap_tensors

        def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> Any:
            memo = self.mode.fake_tensor_converter.meta_converter.tensor_memo
            self.known.forget(first, second)
            for key in [key for key, known in list(memo.items()) if known is first or known is second]:
                del memo[key]
            return plain(first, second)

        with (
            replaced(utils, swap_tensors=swap_tensors),
            self.mode,
            self._corrected,
            warnings.catch_warnings(),
        ):
            # Copying a fake module asks for addresses, by which torch tells copies apart; nothing reads there.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield

    @contextmanager
    def taken_for_real(self) -> Generator[None, None, None]:
        """While a step runs: libraries that do otherwise for fake tensors do as for real ones where they can."""
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
        """An argument with fake tensors in place of real ones, in lists as well."""
        if isinstance(value, torch.Tensor):
            return value if isinstance(value, FakeTensor) else self._of(value)
        if type(value) in (list, tuple) and any(isinstance(item, torch.Tensor | list | tuple) for item in value):
            return type(value)(self.of(item) for item in value)
        return value

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of a call with fake tensors in place of real ones."""
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
    """Whether a call makes a tensor of Python's numbers: it must see the real one."""
    return func.namespace == "aten" and func._schema.name.partition("::")[2] in _LIFTS
