"""Fake tensors in place of the real ones that a step meets; the real ones stay as they are.

torch's own mode runs an op for real where all its tensors are: it would write to the user's parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from opreplay.replay.capture.calls.arguments import is_dense
from opreplay.replay.capture.calls.patching import replaced

_LIFTS = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})
"""How a tensor of Python's numbers comes to be; fake tensors remember its value only if they see it made."""


_MAX_CONSTANT = 1024
"""Elements of a range whose values are kept while a model is made: probabilities of layers are read from such."""


class _RefusedCalls(TorchDispatchMode):
    """Calls that torch's fake tensors refuse though the step runs: products of groups in float32, and what constructors
    ask of values."""

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()
        self._fakes = fakes
        self.constructing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype not in (torch.bfloat16, None):
            # torch 2.13 checks bfloat16, which its kernels do not need; sizes and strides are the same.
            return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).to(args[0].dtype)
        if self.constructing:
            if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
                if getattr(args[0], "constant", None) is None:
                    return False  # rejection sampling asks whether a draw is left: not of one that holds nothing
            elif func in _RANGES:
                return self._fakes.constant(func, args, kwargs)
        return func(*args, **kwargs)


_RANGES = (
    torch.ops.aten.linspace.default,
    torch.ops.aten.arange.default,
    torch.ops.aten.arange.start,
    torch.ops.aten.arange.start_step,
)


class Fakes:
    """One fake tensor for each real one, with storages shared as the real ones share them."""

    def __init__(self) -> None:
        # Real tensors never get there: `of` stands before.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._real: list[torch.Tensor] = []
        """Real tensors, alive as long as others would be taken for them."""
        self._fake_by_id: dict[int, torch.Tensor] = {}
        self._refused = _RefusedCalls(self)

    @contextmanager
    def constructing(self) -> Generator[None, None, None]:
        """While a model is made: its weights hold nothing, and what initialises them asks nothing of them."""
        self._refused.constructing = True
        try:
            yield
        finally:
            self._refused.constructing = False

    def constant(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """A short range as a fake tensor that knows its values; a long one knows none."""
        with _disable_current_modes():
            real = func(*args, **{**kwargs, "device": torch.device("cpu")})
        if real.numel() > _MAX_CONSTANT:
            return func(*args, **kwargs)
        return self._with_constant(self.mode.from_tensor(real, static_shapes=True), real)

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
            for key in [key for key, known in list(memo.items()) if known is first or known is second]:
                del memo[key]
            return plain(first, second)

        with (
            replaced(utils, swap_tensors=swap_tensors),
            self.mode,
            self._refused,
            warnings.catch_warnings(),
        ):
            # Copying a fake module asks for addresses, by which torch tells copies apart; nothing reads there.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
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


def keeps_real(func: Any) -> bool:
    """Whether a call must see the real tensor."""
    return func.namespace == "aten" and func._schema.name.partition("::")[2] in _LIFTS
