"""Decoding reads all keys and values of its sequences: no prediction is below what memory needs for that."""

from __future__ import annotations

import pytest

import opreplay
from opreplay.replay.ascend import list_devices, load_device

CALLS = {
    "heads": "aten::scaled_dot_product_attention(bf16[64,32,1,128], bf16[64,32,{n},128], bf16[64,32,{n},128])",
    "groups": "aten::scaled_dot_product_attention(bf16[64,32,1,128], bf16[64,4,{n},128], bf16[64,4,{n},128], "
    "enable_gqa=True)",
    "flash": "aten::_scaled_dot_product_flash_attention(bf16[64,32,1,128], bf16[64,32,{n},128], bf16[64,32,{n},128])",
    "fused": "npu::npu_fused_infer_attention_score(bf16[64,32,1,128], bf16[64,32,{n},128], bf16[64,32,{n},128], "
    'num_heads=32, input_layout="BNSD")',
}
HEADS = {"heads": 32, "groups": 4, "flash": 32, "fused": 32}


@pytest.mark.slow
@pytest.mark.parametrize("soc", list_devices())
@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("length", [128, 2048, 8192, 65536])
def test_attention_reads_all_keys_and_values(form: str, length: int, soc: str) -> None:
    cached_bytes = 2 * 64 * HEADS[form] * length * 128 * 2
    predicted = opreplay.op(CALLS[form].format(n=length)).simulate(soc, l2="cold")
    assert predicted.time_us >= cached_bytes / load_device(soc).hbm_bytes_per_s * 1e6
