"""LoRA's products where tokens have no adapter, and where the product is written instead of added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import all_formulas

FORMULAS = all_formulas()
X, LOW, A, B = torch.randn(5, 16), torch.randn(5, 4), torch.randn(3, 4, 16), torch.randn(3, 6, 4)
WHO, ONES = torch.tensor([2, -1, 0, 2, 1]), torch.ones(5, dtype=torch.int64)
SEQUENCES = {
    "b_seq_start_loc": torch.arange(5),
    "seq_len_tensor": ONES,
    "lora_indices_tensor": WHO,
    "batches": 5,
    "max_seq_length": 1,
    "token_nums": 5,
}
LISTS = {
    "token_lora_mapping": WHO,
    "token_indices_sorted_by_lora_ids": WHO.argsort(stable=True),
    "num_tokens_per_lora": torch.tensor([1, 1, 1, 2]),
    "lora_token_start_loc": torch.tensor([0, 1, 2, 3, 5]),
    "lora_ids": torch.tensor([-1, 0, 1, 2]),
}
SHRINK, BESIDE = {"inputs": X, "scaling": 0.5}, {"inputs": torch.stack((LOW, 2 * LOW)), "lora_b_weights": [B, B]}
SHRINKING: dict[str, dict[str, Any]] = {
    "vllm::bgmv_shrink": {**SHRINK, "lora_a_weights": A, "lora_indices_tensor": WHO},
    "vllm::sgmv_shrink": {**SHRINK, "lora_a_weights": [A, 2 * A], **SEQUENCES},
    "vllm::v1_shrink": {**SHRINK, "lora_a_weights": [A, 2 * A], **LISTS},
    "npu::bgmv_shrink": {"x": X, "weight": A, "indices": WHO, "scale": 0.5},
    "npu::sgmv_shrink": {"x": X, "weight": A, "lora_indices": WHO, "seq_len": ONES, "scale": 0.5},
    "_punica_C::dispatch_bgmv": {"x": X, "w": torch.stack((A, -A), 1), "indicies": WHO, "layer_idx": 1, "scale": 0.5},
}
EXPANDING: dict[str, dict[str, Any]] = {
    "vllm::bgmv_expand": {"inputs": LOW, "lora_b_weights": B, "lora_indices_tensor": WHO},
    "vllm::sgmv_expand": {**BESIDE, **SEQUENCES},
    "vllm::sgmv_expand_slice": {"inputs": LOW, "lora_b_weights": B, **SEQUENCES, "slice_offset": 6, "slice_size": 6},
    "vllm::v1_expand": {**BESIDE, **LISTS},
}


def check(
    call: Callable[..., Any], close: Callable[..., Any], name: str, out: str, target: Tensor, **given: Any
) -> None:
    wanted = FORMULAS[name].compute({**given, out: target.clone()})
    call(name, **given, **{out: target})
    close(target, wanted.double(), 10)


@pytest.mark.parametrize("name", SHRINKING)
def test_a_token_without_an_adapter_has_no_product(
    call: Callable[..., Any], close: Callable[..., Any], name: str
) -> None:
    given = SHRINKING[name]
    sizes = (2, 5, 4) if isinstance(given.get("lora_a_weights"), list) else (5, 4)
    check(call, close, name, "output_tensor" if "inputs" in given else "y", torch.randn(sizes), **given)


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("name", EXPANDING)
def test_a_product_is_added_or_written(
    call: Callable[..., Any], close: Callable[..., Any], name: str, add: bool
) -> None:
    check(call, close, name, "output_tensor", torch.randn(5, 12), **EXPANDING[name], add_inputs=add)
