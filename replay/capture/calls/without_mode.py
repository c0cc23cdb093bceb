"""Converts calls to those that torch makes when no dispatch mode is active and no tensor is fake.

The plan must contain these calls, on every device, but torch's C++ code takes other paths under a mode. ATen checks
`isTensorSubclassLike` (aten/src/ATen/TensorSubclassLikeUtils.h), which is true for every tensor while a mode is active.
Then `reshape` views instead of aliasing, `linear` and attention add out of place, `one_hot` compares instead of
scattering, and autograd formulas write to copies.

`Views` tracks views that autograd recreates after a write to their base. For a plain tensor, autograd recreates them
from strides; for a fake tensor, it calls the view op again.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from opreplay.replay.capture.calls.arguments import key_of_value, of_numbers
from opreplay.replay.capture.calls.patching import replaced
from opreplay.replay.ir.captured import LikeDevice

_COPY, _AS_STRIDED = torch.ops.aten.copy_.default, torch.ops.aten.as_strided.default
_GRADIENTS_OF_VIEWS = "CopySlices"
"""Suffix of the name of the autograd node for a write to a view. The gradient that this node computes is a view of a
copy.
"""


class Views:
    """Those views of a step that are still alive and require gradients."""

    def __init__(self) -> None:
        self._last: dict[Any, tuple[weakref.ref[torch.Tensor], int]] = {}
        """For each view call, (the last result, version of the base). Autograd can recreate that result while the base
        has that version.
        """
        self._copied = 0
        """Address of the storage into which the running autograd node has just copied its gradient."""

    def is_again(self, func: Any, args: Sequence[Any]) -> bool:
        """Check whether autograd makes this call to create a view again, because its base was written to."""
        if not func.is_view or not torch.is_grad_enabled():
            return False
        view, version = self._last.get(_key(func, args), (None, 0))
        alive = None if view is None else view()
        if alive is None or args[0]._version == version:
            return False
        self._last[_key(func, args)] = weakref.ref(alive), args[0]._version
        return True

    def add(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Record the result of a view call, or the storage into which a copy call writes."""
        if func is _COPY:
            self._copied = args[0].untyped_storage()._cdata
        if func.is_view and torch.is_grad_enabled() and isinstance(result, torch.Tensor):
            self._last[_key(func, args)] = weakref.ref(result), args[0]._version

    def is_of_gradient(self, func: Any, args: Sequence[Any], node: str | None) -> bool:
        """Check whether a call takes a view of the copy of a gradient. For a plain tensor, autograd does not make this
        call; it uses strides instead.
        """
        is_copied = node is not None and node.endswith(_GRADIENTS_OF_VIEWS)
        return is_copied and func is not _AS_STRIDED and args[0].untyped_storage()._cdata == self._copied


def _key(func: Any, args: Sequence[Any]) -> Any:
    return func, id(args[0]), key_of_value(args[1:])


_internal: Any = import_module("torch._C")
_aten: Any = torch.ops.aten
_COMPOSED = "CompositeImplicitAutograd"
_RESHAPING, _ADDING = ("reshape", "flatten.using_ints"), ("linear", "_scaled_dot_product_attention_math")
_ONE_HOT = "one_hot"
_VIEW, _ADD, _NEW_ZEROS = _aten.view.default, _aten.add.Tensor, _aten.new_zeros.default
_LOOK = _aten._local_scalar_dense.default
_LOOKS_AT_FAKE = "a check of a fake tensor"
_OF_NUMBERS = "torch.tensor"
_WRITES: dict[Any, Any] = {
    _aten.index_put.default: _aten._index_put_impl_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_fill.int_Scalar: _aten.index_fill_.int_Scalar,
    _aten.index_fill.int_Tensor: _aten.index_fill_.int_Tensor,
    _aten.put.default: _aten.put_.default,
}
"""Overload that is called under a mode → in-place overload that is called without one.

Autograd formulas (torch/csrc/autograd/FunctionsManual.cpp) make these calls on tensors that they created themselves.
"""
_COPYING = ("ScatterReduceBackward", "IndexReduceBackward")
"""Prefixes of autograd nodes whose formulas write into copies, whether or not a mode is active."""
_CROSS_ENTROPY: dict[Any, Any] = {_aten.sub.Tensor: _aten.sub_.Tensor, _aten.mul.Tensor: _aten.mul_.Tensor}
"""Additional in-place overloads that the formula of `binary_cross_entropy_with_logits` uses."""
_SELECTING = (
    *("MaxBackward", "MinBackward", "MedianBackward", "NanmedianBackward", "KthvalueBackward", "ModeBackward"),
    *("SortBackward", "TopkBackward"),
)
"""Prefixes of autograd nodes that use `value_selecting_reduction_backward`. This function writes to zeros that it
created.
"""

_FORMULAS = frozenset({_NEW_ZEROS, *_WRITES, *_CROSS_ENTROPY})

Call = tuple[Any, Sequence[Any], dict[str, Any]]
"""A call: (overload, positional arguments, keyword arguments)."""


class WithoutMode:
    """Tracks which composite op is running, and determines which calls this op would make without a mode."""

    def __init__(self, wraps: Callable[[type], bool], *, fake: bool, device: LikeDevice) -> None:
        """Create a converter that has seen no calls.

        `wraps` says whether tensors of a type make their own calls, like a DTensor. Torch treats such tensors as if a
        mode were active. `fake` says whether calls run on fake tensors. `device` selects the calls that `one_hot`
        makes.
        """
        self._wraps, self._fake, self._device = wraps, fake, device
        self._inside: list[str] = []
        self.views = Views()
        self.packing = 0
        """Number of running hooks that pack tensors saved for backward. Detach calls that these hooks make are not
        recorded.
        """

    @contextmanager
    def following(self) -> Iterator[None]:
        """Wrap the kernels of the relevant composite ops. The wrappers apply to the whole process, also to calls from
        C++.

        Requires `torch.library.get_kernel` (torch 2.10). With older versions, nothing is wrapped, and calls are
        recorded as they are made under a mode.
        """
        get_kernel = getattr(torch.library, "get_kernel", None)
        if get_kernel is None:
            yield
            return
        library: Any = torch.library.Library("aten", "IMPL")
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="[\\s\\S]*verriding a previously registered kernel")
                for name in (*_RESHAPING, *_ADDING, _ONE_HOT):
                    kernel = get_kernel(f"aten::{name}", "AutogradCPU")
                    library.impl(name, self._around(name, kernel), _COMPOSED)
            with self._watching_python():
                yield
        finally:
            library._destroy()

    @contextmanager
    def _watching_python(self) -> Iterator[None]:
        """Context that wraps Python functions that reveal the purpose of a call, e.g. to save a tensor for backward."""
        hooks: Any = torch.autograd.graph.saved_tensors_hooks
        plain = hooks.__init__

        def init(hook: Any, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
            def packed(tensor: Any) -> Any:
                self.packing += 1
                try:
                    return pack(tensor)
                finally:
                    self.packing -= 1

            plain(hook, packed, unpack)

        checked: Any = torch._check_tensor_all_with

        def check(kind: type[BaseException], condition: Any, message: Any = None) -> None:
            with self._being(_LOOKS_AT_FAKE):
                checked(kind, condition, message)

        formatted: Any = torch.Tensor.__format__

        def format_value(tensor: Any, form: str) -> str:
            if tensor.dim() or not isinstance(tensor, FakeTensor):
                return formatted(tensor, form)
            with self._being(_LOOKS_AT_FAKE):  # a message reads the value of a tensor that it has
                return format(tensor.detach().item(), form)

        def detaching(plain: Callable[..., Any]) -> Callable[..., Any]:
            def made(*args: Any, **named: Any) -> Any:
                with self._being(_OF_NUMBERS):
                    return plain(*args, **named)

            return made

        with (
            replaced(hooks, __init__=init),
            replaced(torch, tensor=detaching(of_numbers(torch.tensor))),
            replaced(torch.Tensor, new_tensor=detaching(torch.Tensor.new_tensor)),
            replaced(torch, **({"_check_tensor_all_with": check} if self._fake else {})),
            replaced(torch.Tensor, **({"__format__": format_value} if self._fake else {})),
        ):
            yield

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any], is_own: Callable[[Any], bool]) -> Call:
        """Return the call that torch would make without a mode. `is_own(tensor)` says whether the current autograd node
        created that tensor.
        """
        if func is _VIEW and self._running in _RESHAPING and not args[0].is_contiguous():
            view = func(*args, **named)
            return _aten._reshape_alias.default, (args[0], list(view.shape), list(view.stride())), {}
        if func is _ADD and self._running in _ADDING:
            return _aten.add_.Tensor, args, named
        if func.is_view and self.views.is_of_gradient(func, args, _formula()):
            view = func(*args, **named)
            return _aten.as_strided.default, (args[0], list(view.shape), list(view.stride()), view.storage_offset()), {}
        if func not in _FORMULAS or torch.is_grad_enabled() or (node := _formula()) is None:
            return func, args, named
        if func is _NEW_ZEROS:
            return _zeros(args) if node.startswith(_SELECTING) and not named else (func, args, named)
        in_place = _in_place(func, node)
        scales = func is _aten.mul.Tensor and is_own(args[1])  # of its own by its own, which is no gradient
        if in_place is None or scales or not is_own(args[0]):
            return func, args, named
        return in_place, args, {**named, "unsafe": True} if func is _aten.index_put.default else named

    @property
    def _running(self) -> str:
        """Name of the innermost wrapped op or function that is running; "" if none is."""
        return self._inside[-1] if self._inside else ""

    @property
    def makes_tensor(self) -> bool:
        """Whether `torch.tensor` or `Tensor.new_tensor` is running. Only these two functions detach the tensor that
        they create from Python numbers.
        """
        return self._running == _OF_NUMBERS

    def run_of(self, func: Any) -> Any:
        """Return the function that runs a call. It is the op itself, with one exception: a substitute runs if the call
        reads a value from a fake tensor and any value will do.
        """
        return _any_value if func is _LOOK and self._running == _LOOKS_AT_FAKE else func

    def _around(self, name: str, kernel: Any) -> Callable[..., Any]:
        keys = _internal.DispatchKeySet(_internal.DispatchKey.CPU)  # kernels of composed ops ask for none

        def called(*args: Any, **named: Any) -> Any:
            tensors = [tensor for tensor in pytree.tree_leaves((args, named)) if isinstance(tensor, torch.Tensor)]
            wrapped = any(self._wraps(type(tensor)) for tensor in tensors)
            if name == _ONE_HOT and not wrapped and self._fake and args[1:] and args[1] > 0:
                with self._being(_LOOKS_AT_FAKE):
                    return _one_hot(tensors[0], args[1], looks=self._device == "cpu")
            with self._being("" if wrapped else name):
                return kernel.call_boxed(keys, *args, **named)

        return called

    @contextmanager
    def _being(self, name: str) -> Iterator[None]:
        self._inside.append(name)
        try:
            yield
        finally:
            self._inside.pop()


def _any_value(tensor: torch.Tensor) -> int | bool:
    return True if tensor.dtype == torch.bool else 0  # what is asserted holds


def _one_hot(index: torch.Tensor, classes: int, *, looks: bool) -> torch.Tensor:
    """Compute `one_hot` as aten/src/ATen/native/Onehot.cpp does for real tensors.

    With `looks` (on the CPU), the lowest and the highest index are read. They decide only whether an error is raised. A
    fake index counts as valid.
    """
    if index.numel() and looks:
        low, high = torch.aminmax(index)
        _LOOK(low)
        _LOOK(high)
    zeros = _aten.zeros.default((*index.shape, classes), dtype=index.dtype, layout=index.layout, device=index.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1) if index.numel() else zeros


def _in_place(func: Any, node: str) -> Any:
    """Return the in-place overload that a node's formula runs instead of `func`; None if the formula runs `func`
    itself.
    """
    if node.startswith(_COPYING):
        return None
    return (_CROSS_ENTROPY if node.startswith("BinaryCrossEntropyWithLogits") else _WRITES).get(func)


def _zeros(args: Sequence[Any]) -> Call:
    like: torch.Tensor = args[0]
    return _aten.zeros.default, (args[1],), {"dtype": like.dtype, "layout": like.layout, "device": like.device}


def _formula() -> str | None:
    """Return the name of the current autograd node if torch itself defines its formula.

    None outside backward, and for a user's formula, which runs as written.
    """
    if _internal._current_graph_task_id() == -1:
        return None
    node: Any = _internal._current_autograd_node()
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    return str(node.name())
