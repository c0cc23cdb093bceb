"""A text that needs torch alone gives what the reference does, whatever the op calls its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.export.standalone import called_text
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.ops.register import implemented, reference_of, stand_in_of
from tests.factories import meta

X, W = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.linspace(0.5, 2, 8)
CALLS: dict[str, dict[str, Any]] = {
    "_C::rms_norm": {"result": torch.empty(4, 8), "input": X, "weight": W, "epsilon": 1e-6},
    "sgl_kernel::gemma_fused_add_rmsnorm": {"input": X, "residual": X + 1, "weight": W, "eps": 1e-6},
    "_C::dsv3_fused_a_gemm": {"output": torch.empty(4, 6), "mat_a": X, "mat_b": torch.ones(8, 6)},
    "aiter::rmsnorm_quant": {
        "out": torch.empty(4, 8).to(torch.int8), "input": X, "scale": torch.empty(4, 1), "weight": W, "epsilon": 1e-6,
        "group_size": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_text_gives_what_the_reference_does(name: str) -> None:
    implemented()
    version = reference_of(name, "")
    assert version is not None
    values = CALLS[name]
    written = [
        a.name for a in torch._C.parse_schema(version.schema).arguments if a.alias_info and a.alias_info.is_write
    ]
    args = tuple(
        ReplayArg(name=key, type="Tensor", tensors=(meta(*value.shape),), mutated=key in written)
        if isinstance(value, Tensor)
        else ReplayArg(name=key, type="Scalar", value=value)
        for key, value in values.items()
    )
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    op = ReplayOp(
        id="0" * 12, name=name, count=1, recorded=recorded, args=args, resolved_by="reference", schema=version.schema
    )
    tensors = {key: value for key, value in values.items() if isinstance(value, Tensor)}
    text = called_text(op, list(tensors), {key: key if key in tensors else repr(v) for key, v in values.items()})
    assert text is not None
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102
    results = names["run"](**{key: value.clone() for key, value in tensors.items()})
    expected = {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}
    stand_in = stand_in_of(name)
    assert stand_in is not None
    stand_in(**expected)
    pairs = zip(results if isinstance(results, tuple) else (results,), written, strict=True)
    assert all(torch.equal(result, expected[key]) for result, key in pairs)
