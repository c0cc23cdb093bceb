"""Ops of the references under test: `op("_C::rms_norm")` registers the namespace and returns the torch op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.ops import register as reference


def _op(name: str) -> Any:
    namespace, _, operator = name.partition("::")
    reference.register_namespace(namespace)
    return getattr(getattr(torch.ops, namespace), operator)


@pytest.fixture
def op() -> Callable[[str], Any]:
    torch.manual_seed(0)
    return _op


def _tensors(value: Any) -> list[Tensor]:
    items = value if isinstance(value, (tuple, list)) else [value]
    return [
        tensor
        for item in items
        for tensor in (_tensors(item) if isinstance(item, (tuple, list)) else [item])
        if isinstance(tensor, Tensor)
    ]


def _meta(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_meta(item) for item in value]
    return value.to("meta") if isinstance(value, Tensor) else value


def _moved(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_moved(item) for item in value]
    return value.to("cuda") if isinstance(value, Tensor) else value


def _cloned(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cloned(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value


def _bytes(value: Any) -> list[bytes]:
    return [
        t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        for t in _tensors(value)
    ]


def _writes_as_marked(target: Any, kwargs: dict[str, Any], before: dict[str, list[bytes]], result: Any) -> None:
    """Arguments that changed are marked as written, and results share memory only with what they say they alias."""
    marks = {argument.name: argument.alias_info for argument in target._schema.arguments}
    for name, value in kwargs.items():
        if marks[name] is None or not marks[name].is_write:
            assert _bytes(value) == before[name], f"{name} changed, and is not marked as written"
    aliased = any(given.alias_info is not None for given in target._schema.returns)
    inputs = {t.untyped_storage().data_ptr() for value in kwargs.values() for t in _tensors(value) if t.numel()}
    for tensor in _tensors(result):
        shared = tensor.numel() and tensor.untyped_storage().data_ptr() in inputs
        assert aliased or not shared, "a result shares memory with an argument, and is not marked as its alias"


@pytest.fixture
def call() -> Callable[..., Any]:
    """`call("ns::op", name=value, ..)` runs the newest version and gives its result.

    On the way: the schema tells the truth about writes and aliases, meta tensors give the same shapes and dtypes, and
    where there is a GPU it gives the same values. `overload` picks an older version; optional arguments may be absent.
    """
    torch.manual_seed(0)

    def run(name: str, overload: str = "default", **kwargs: Any) -> Any:
        target = getattr(_op(name), overload)
        for argument in target._schema.arguments:
            if not argument.has_default_value() and str(argument.type).startswith("Optional"):
                kwargs.setdefault(argument.name, None)
        there = {key: _moved(_cloned(value)) for key, value in kwargs.items()} if torch.cuda.is_available() else None
        promised = _tensors(target(**{key: _meta(value) for key, value in kwargs.items()}))
        before = {key: _bytes(value) for key, value in kwargs.items()}
        real = target(**kwargs)
        _writes_as_marked(target, kwargs, before, real)
        for one, other in zip(_tensors(real), promised, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert other.is_meta
        if there is not None:
            found = [*_tensors(target(**there)), *_tensors(list(there.values()))]
            for one, other in zip([*_tensors(real), *_tensors(list(kwargs.values()))], found, strict=True):
                torch.testing.assert_close(other.cpu().double(), one.double(), rtol=2e-2, atol=2e-2)
        return real

    return run


def _close(found: Tensor, wanted: Tensor, scale: float = 1.0) -> None:
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(found.dtype, 2e-5) * scale
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture
def close() -> Callable[..., None]:
    """`close(found, wanted)`: equal within what found's dtype can hold; `scale` loosens it."""
    return _close
