"""How much of the vendors' published ops has a stand-in: what has none has a reason, or counts towards a limit."""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from opreplay.replay.ops.declared import versions_of
from opreplay.replay.ops.register import canonical_name, implemented

PUBLISHED = Path(__file__).parents[3].parent / "shared" / "design" / "vendor_op_schemas.csv"

WITHOUT: dict[str, str] = {
    "sends between ranks": r"""
        c10d:: symm_mem:: transformer_engine_ep:: _C_custom_ar:: .*all_?reduce .*all_?gather .*reduce_scatter
        .*all_?to_?all .*alltoallv .*moe_distribute_ .*direct_dcp_ .*mscclpp .*dispatch_(ffn|gmm|prefill)
        _C_ascend::(combine_prefill|get_dispatch_layout) .*(attention_to_ffn|ffn_to_attention)
        xformers_python::sequence_parallel .*(matmul_and_reduce|maybe_pad_and_reduce|sequence_parallel_chunk) .*qr_
        vllm::(maybe_chunk_residual|fused_.*_reduce_scatter) fbgemm::merge_pooled_embeddings""",
    "is of the host: queries, handles, metadata, workspaces, printing": r"""
        _C_cuda_utils:: .*_(metadata|metadata_out|metadata_v1|metadata_v1_impl|metadata_v1_no_redundant)$
        .*(workspace_size|max_workspace|infer_output|schedules|_supported)$ .*supports_ .*ipc_meta .*register_
        .*weak_ref_tensor .*storage_shape .*device_print .*npu_print .*npu_version .*get_block_size .*init_custom_ar
        .*greenctx .*get_cuda_view .*(group_gemm_supported|moe_permute_unpermute_supported) .*empty_with_format
        .*get_npu_format .*silent_check .*mla_decoding_metadata .*mla_metadata_v1 .*dense_fp8$ .*prefetch.*
        .*eplb_ .*capture_routing""",
    "finds weights or state by the name of a layer": r"""
        vllm::(.*gdn|.*mamba|.*kda|linear_attention|short_conv|.*_forward$|deepseek_v4_|.*unified_|maybe_|.*moe_forward)
        vllm::(lora_linear_async|sparse_attn_indexer|dsa_|sfa_|mla_|cpu_|.*_impl$|flashinfer_wrapper)
        sglang::(.*with_output|.*with_output_and_lse|.*moe_forward|.*piecewise|moe_impl|mla_bmm|forward_cuda)""",
    "has numbers in 4 or 6 bits, or scales in 8 bits, with a layout of one device": r"""
        .*fp4 .*mxfp .*mxf4 .*nvf4 .*_mx_ .*mx8 .*a4w4 .*nvfp4 .*int4b .*fp6 .*quantize_(mx|nv) .*safeFused
        .*mx_(fp4|fp8|block|quant) .*s8s4|.*s4s4 .*i4bf16 .*preshuffle_i4 .*bnb_4bit .*w4a8 .*mm_mxfp8 .*mxscale""",
    "has weights in a format of one project (GGUF, AQLM, SqueezeLLM, tiles, 2:4 sparsity)": r"""
        .*ggml .*gguf .*aqlm .*squeezellm .*marlin.?_24 .*sparse24 .*sparse_scaled .*scaled_sparse .*sparse_compress
        .*cusplt .*rdna .*woq .*qqq .*quant_llm .*tensor_core_tiled .*machete .*n32k16 .*linear_sparse""",
    "moves a cache between machines or by addresses": r"""
        .*transfer_ .*swap_blocks .*copy_to_gpu_no_ce .*transpose_kv_cache .*store_kv_block .*npu_kv_dim""",
    "is of a speculative decoder's tree": r".*tree .*eagle .*ngram .*n_gram .*advance_step .*cache_loc .*alloc_extend",
    "attends to a chosen part of the keys": r"""
        .*sparse.*(attn|attention|mla|prefill|decode|lightning|sharedkv) .*fwd_sparse .*indexer .*nsa_ .*vertical_slash
        .*block_sparse .*fp8_(paged_)?mqa .*compress(or)? .*hamming .*floyd .*k2q .*vsa_ .*infllm .*max_pooling_1d""",
    "keeps a recurrent state that is of one model": r"""
        .*gated_delta .*gdn .*gdr .*kda .*conv1d .*chunk_fwd_o .*lightning_attention .*flashkda .*mhc
        .*hc_(pre|post|head) .*triangular_inverse""",
    "is fused for one model": r"""
        .*deepseek_v4 .*dsv4 .*kimi .*minimax .*bailing .*plamo .*situ .*mla_(prolog|preprocess) .*hpc_ .*olmo
        .*deepseek_scaling""",
    "comes with torch": "prims::",
    "is of a CPU or of another accelerator": r".*_cpu$ .*xpu .*flydsl .*_op_cpu",
}
"""Reason → patterns (of whole names, from the start) of the ops that it explains."""

NOT_YET = 413
"""Ops that could have a stand-in and do not. May only fall."""


def _reason(name: str) -> str | None:
    return next((why for why, patterns in WITHOUT.items() if any(re.match(p, name) for p in patterns.split())), None)


def _missing() -> set[str]:
    known = {name for names in implemented().values() for name in names}
    return {name for name in _published() if canonical_name(name) not in known}


def _published() -> set[str]:
    if not PUBLISHED.is_file():
        pytest.skip(f"no {PUBLISHED}: a list of published ops that does not ship with the repository")
    with PUBLISHED.open(encoding="utf-8") as file:
        return {f"{row['namespace']}::{row['op'].split('.')[0]}" for row in csv.DictReader(file)}


def test_published_ops_without_a_stand_in_have_a_reason_or_are_counted() -> None:
    missing = _missing()
    counted = sorted(name for name in missing if _reason(name) is None)
    assert len(counted) <= NOT_YET, f"{len(counted)} ops are without, first of all {counted[:20]}"
    assert len(counted) > NOT_YET - 25, f"lower NOT_YET to {len(counted)}"


def test_every_reason_explains_some_op() -> None:
    missing = _missing()
    used = {_reason(name) for name in missing}
    assert set(WITHOUT) <= used


def test_schema_tables_are_schemas() -> None:
    for table in files("opreplay.replay.ops.schemas").iterdir():
        if not table.name.endswith(".txt"):
            continue
        for line in table.read_text(encoding="utf-8").splitlines():
            since, tab, schema = line.partition("\t")
            assert tab, f"{table.name}: {line}"
            assert re.fullmatch(r"(\d{4}-\d\d-\d\d)?", since), f"{table.name}: {line}"
            parsed = torch._C.parse_schema(schema)
            assert parsed.name.partition("::")[0] == table.name.removesuffix(".txt")
            assert (since, schema) in versions_of(parsed.name)


def test_what_a_stand_in_makes_up_is_an_assumption_of_the_plan() -> None:
    from opreplay.replay.ops.register import assumed_by, register_namespace

    register_namespace("vllm")
    told = " ".join(assumed_by("vllm::moe_forward"))
    assert "top-k" in told
    assert "one pair of matrices" in told
    assert assumed_by("aten::mm") == ()
