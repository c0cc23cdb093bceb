"""How long each built-in initializer takes for 100,000 tokens, and on a real trace against the op's own loop.

    python benchmarks/initializers.py [--tokens N] [--trace FILE ...] [--only NAME]

First the time of each initializer alone (median of several runs, plain values left out) beside torch.randn of one
float a token, so that a loaded machine shows. Then, with --trace, the time to initialise each op of a plan against the
wall time that measuring it takes. Bars: 50 ms on the CPU; 5 % of an op's replay loop (median).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.dense import DenseInit
from opreplay.initializers.registry import Registry
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.links.annotations import BatchContext

EXPERTS, TOPK, PAGE = 128, 8, 16
RUNS = 7

Case = tuple[str, Callable[[int], dict[str, Any]]]


def longs(*shape: int) -> torch.Tensor:
    """int64, filled by an initializer."""
    return torch.zeros(shape, dtype=torch.int64)


def ints(*shape: int) -> torch.Tensor:
    """int32, filled by an initializer."""
    return torch.zeros(shape, dtype=torch.int32)


def flags(*shape: int) -> torch.Tensor:
    """bool, filled by an initializer."""
    return torch.zeros(shape, dtype=torch.bool)


def batch_of(tokens: int) -> BatchContext:
    """A mixed batch: an eighth of a percent of the tokens are decoded, the rest are prefilled in sixteen sequences."""
    decode = max(1, tokens // 800)
    return BatchContext(
        prefill_sequences=16,
        prefill_tokens=tokens - decode,
        prefill_k=2 * (tokens - decode),
        decode_sequences=decode,
        decode_tokens=decode,
        decode_k=100 * decode,
    )


def varlen(n: int) -> dict[str, Any]:
    """vLLM's attention over a paged cache."""
    batch = batch_of(n)
    sequences = batch.prefill_sequences + batch.decode_sequences
    pool = torch.empty(4 * n // PAGE + sequences + 1, PAGE, 1, 1)
    return {
        "q": torch.empty(n, 1, 1),
        "k": pool,
        "v": pool,
        "cu_seqlens_q": ints(sequences + 1),
        "seqused_k": ints(sequences),
        "block_table": ints(sequences, 4 * n // PAGE // 8 + 1),
    }


def slots(n: int) -> dict[str, Any]:
    """vLLM's write of new keys and values to the cache."""
    cache = torch.empty(4 * n // PAGE, PAGE, 1, 1)
    return {"key": torch.empty(n, 1, 1), "key_cache": cache, "value_cache": cache, "slot_mapping": longs(n)}


def stage(n: int) -> dict[str, Any]:
    """aiter's sorted and packed tokens."""
    blocks = n * TOPK // 32 + EXPERTS
    return {
        "hidden_states": torch.empty(n, 1),
        "w1": torch.empty(EXPERTS, 1, 1),
        "sorted_token_ids": ints(blocks * 32),
        "sorted_expert_ids": ints(blocks),
        "num_valid_ids": ints(2),
        "topk": TOPK,
        "block_m": 32,
        "sorted_weights": torch.empty(blocks * 32),
    }


def experts(n: int) -> dict[str, Any]:
    """Chosen experts and their weights."""
    return {
        "hidden_states": torch.empty(n, 1),
        "w1": torch.empty(EXPERTS, 1, 1),
        "topk_ids": ints(n, TOPK),
        "topk_weights": torch.empty(n, TOPK),
    }


def attention(n: int) -> dict[str, Any]:
    """What a dense attention's backward pass gets."""
    q = torch.randn(1, 2, n // 4, 2)
    return {"query": q, "key": q, "value": q, "out": torch.empty_like(q), "logsumexp": torch.empty(1, 2, n // 4)}


CASES: tuple[Case, ...] = (
    ("aten::log", lambda n: {"self": torch.empty(n, 16)}),
    ("aten::_softmax_backward_data", lambda n: {"output": torch.randn(n, 16), "dim": -1}),
    ("aten::max_pool2d_with_indices_backward", lambda n: {
        "grad_output": torch.randn(n // 16, 1, 2, 2), "self": torch.randn(n // 16, 1, 4, 4), "kernel_size": [2, 2],
        "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False,
        "indices": longs(n // 16, 1, 2, 2)}),
    ("aten::max_unpool2d", lambda n: {"indices": longs(n // 16, 1, 4, 4), "output_size": [8, 8]}),
    ("aten::linalg_inv", lambda n: {"A": torch.randn(max(1, n // 256), 16, 16)}),
    ("aten::embedding", lambda n: {"weight": torch.empty(50_000, 1), "indices": longs(n)}),
    ("aten::scatter_add_", lambda n: {"self": torch.empty(n, 8), "dim": 0, "index": longs(n, 8)}),
    ("aten::index_put_", lambda n: {"self": torch.empty(n, 4), "indices": [longs(n)], "values": torch.empty(n, 4)}),
    ("aten::index", lambda n: {"self": torch.empty(n, 4), "indices": [flags(n)]}),
    ("aten::embedding_bag", lambda n: {
        "weight": torch.empty(50_000, 1), "indices": longs(n), "offsets": longs(n // 8)}),
    ("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", lambda n: {
        "dev_weights": torch.empty(64 * n), "D_offsets": ints(65), "total_D": 64 * 16, "hash_size_cumsum": longs(65),
        "weights_offsets": longs(64), "weights_placements": ints(64), "indices": longs(n),
        "offsets": longs(n // 8 + 1)}),
    ("fbgemm::permute_2D_sparse_data", lambda n: {
        "permute": ints(64), "lengths": ints(64, n // 640), "values": torch.empty(n)}),
    ("fbgemm::bounds_check_indices", lambda n: {
        "rows_per_table": longs(8), "indices": longs(n), "offsets": longs(n // 8 + 1), "warning": longs(1)}),
    ("npu::npu_scatter_nd_update", lambda n: {
        "self": torch.empty(n, 4), "indices": longs(n, 1), "updates": torch.empty(n, 4)}),
    ("_C::gptq_gemm", lambda n: {
        "b_q_weight": ints(n // 64, 1024), "b_gptq_scales": torch.empty(n // 1024, 128), "b_g_idx": ints(n)}),
    ("aten::searchsorted", lambda n: {"sorted_sequence": torch.randn(n), "self": torch.randn(n)}),
    ("aten::topk", lambda n: {"self": longs(n, 16)}),
    ("aten::repeat_interleave", lambda n: {"self": torch.empty(n // 2), "repeats": longs(n // 2), "output_size": n}),
    ("aten::ctc_loss", lambda n: {
        "log_probs": torch.randn(50, n // 500, 10), "targets": longs(n // 500, 20), "input_lengths": longs(n // 500),
        "target_lengths": longs(n // 500)}),
    ("aten::_pack_padded_sequence", lambda n: {"input": torch.empty(100, n // 100, 1), "lengths": longs(n // 100)}),
    ("aten::_pad_packed_sequence", lambda n: {"data": torch.empty(n, 4), "batch_sizes": longs(100)}),
    ("aten::segment_reduce", lambda n: {"data": torch.empty(n, 4), "lengths": longs(n // 10), "axis": 0}),
    ("aten::sparse_compressed_tensor", lambda n: {
        "compressed_indices": longs(n // 10 + 1), "plain_indices": longs(n), "values": torch.empty(n)}),
    ("aten::linalg_lu_solve", lambda n: {
        "LU": torch.empty(n // 100, 10, 10), "pivots": torch.zeros(n // 100, 10, dtype=torch.int32),
        "B": torch.empty(n // 100, 10, 1)}),
    ("aten::_linalg_check_errors", lambda n: {"info": torch.zeros(n, dtype=torch.int32)}),
    ("aten::native_dropout_backward", lambda n: {"mask": flags(n, 16), "scale": 1.25}),
    ("aten::masked_fill_", lambda n: {"mask": flags(n, 16)}),
    ("aten::_nested_tensor_from_mask", lambda n: {"t": torch.empty(n // 64, 64, 1), "mask": flags(n // 64, 64)}),
    ("aten::masked_select_backward", lambda n: {"grad": torch.empty(4 * n), "input": torch.empty(n, 16),
                                                "mask": flags(n, 16)}),
    ("aten::masked_scatter_", lambda n: {"self": torch.empty(n, 16), "mask": flags(n, 1),
                                         "source": torch.empty(n // 4, 16)}),
    ("aten::scaled_dot_product_attention", lambda n: {
        "query": torch.empty(max(1, n // 4096), 1, 1024, 1), "attn_mask": flags(max(1, n // 4096), 1, 1024, 4096)}),
    ("aten::_flash_attention_forward", lambda n: {
        "query": torch.empty(n, 1, 1), "key": torch.empty(n, 1, 1), "cum_seq_q": ints(65), "cum_seq_k": ints(65)}),
    ("aten::_scaled_dot_product_flash_attention_backward", attention),
    ("_vllm_fa2_C::varlen_fwd", varlen),
    ("_C_cache_ops::reshape_and_cache_flash", slots),
    ("_C::rotary_embedding", lambda n: {
        "positions": longs(n), "query": torch.empty(n, 1), "cos_sin_cache": torch.empty(2 * n, 1)}),
    ("sglang_profiler::forward_batch_info_compute_position", lambda n: {
        "extend_prefix_lens": ints(16 + n // 800), "extend_seq_lens": ints(16 + n // 800)}),
    ("aiter::topk_softmax", lambda n: {"gating_output": torch.empty(n, EXPERTS), "topk_indices": ints(n, TOPK)}),
    ("aiter::ck_moe_stage1", stage),
    ("vllm::fused_experts", experts),
    ("_moe_C::moe_align_block_size", lambda n: {"topk_ids": ints(n, TOPK), "num_experts": EXPERTS}),
    ("npu::npu_grouped_matmul", lambda n: {
        "x": [torch.empty(n, 1)], "weight": [torch.empty(EXPERTS, 1, 1)], "group_list": longs(EXPERTS)}),
    ("npu::npu_moe_token_unpermute", lambda n: {
        "permuted_tokens": torch.empty(n * TOPK, 1), "sorted_indices": ints(n * TOPK), "probs": torch.empty(n, TOPK)}),
    ("vllm::lora_shrink", lambda n: {
        "inputs": torch.empty(n, 1), "lora_a_weights": [torch.empty(8, 1, 1)], "token_lora_mapping": longs(n)}),
    ("_C::causal_conv1d_fwd", lambda n: {
        "x": torch.empty(1, n), "conv_states": torch.empty(256, 1, 3), "cache_indices": ints(64),
        "query_start_loc": ints(65), "has_initial_state": flags(64)}),
    ("_C::top_k_per_row_prefill", lambda n: {
        "logits": torch.empty(n, 4), "rowStarts": ints(n), "rowEnds": ints(n)}),
    ("_C::cutlass_moe_mm", lambda n: {
        "out_tensors": torch.empty(n, 1), "a_tensors": torch.empty(n, 1), "problem_sizes": ints(EXPERTS, 3),
        "expert_offsets": ints(EXPERTS)}),
    ("fbgemm::permute_multi_embedding", lambda n: {
        "pooled_embs": [torch.empty(n // 64, 32), torch.empty(n // 64, 32)], "permutes": ints(16, 6),
        "out_lengths": [16, 48]}),
)  # fmt: skip
"""An op of every initializer, the data-dependent ones with all their layouts, and its arguments for n tokens."""
SETTINGS = {
    "paged_attention": ("distribution=lognormal",),
    "moe_routing": ("distribution=zipf",),
}
"""Other settings that are measured as well."""


def context_of(op: str, args: dict[str, Any], tokens: int, seed: int) -> InitContext:
    """A call whose tensors are not filled yet."""
    return InitContext(
        op=op,
        args=args,
        generator=torch.Generator().manual_seed(seed),
        seed=seed,
        run_seed=seed,
        batch=batch_of(tokens),
    )


def initialise(registry: Registry, op: str, args: dict[str, Any], tokens: int, *, seed: int = 0) -> str:
    """Apply the rule of an op; its name."""
    context = context_of(op, args, tokens, seed)
    rule = registry.find(context)
    if rule is None:
        raise LookupError(f"no initializer applies to {op}")
    registry.apply(rule, context)
    return rule.name


def milliseconds(work: Callable[[], object]) -> float:
    """Median wall time."""
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return 1e3 * median(times)


def one_batch(tokens: int, only: str) -> None:
    """A line for each case."""
    base = milliseconds(lambda: torch.randn(tokens))
    print(f"{tokens:,} tokens; torch.randn of as many floats takes {base:.2f} ms")
    print(f"{'initializer':22} {'op':52} {'ms':>8} {'÷ randn':>8}")
    for op, make in CASES:
        args = make(tokens)
        name = initialise(built_in(), op, args, tokens)
        for setting in ("", *SETTINGS.get(name, ())):
            registry = built_in()
            registry.configure([f"{name}.{setting}"] if setting else [])
            if only in (name, ""):
                took = milliseconds(lambda r=registry, o=op, a=args: initialise(r, o, a, tokens))
                over = "  over 50 ms" if took > 50 else ""
                print(f"{name:22} {op + ' ' + setting:52} {took:8.2f} {took / base:8.1f}{over}")


def one_trace(path: Path) -> None:
    """Share of an op's replay loop that its initializer takes: median, and the ops with the largest."""
    from opreplay.replay.arguments import tensors
    from opreplay.replay.execute.executors.torch.device import TorchExecutor
    from opreplay.replay.execute.measure import measure
    from opreplay.replay.execute.options import MeasureOptions
    from opreplay.replay.ir.reasons import NotReplayable
    from opreplay.replay.ir.sizes import over_budget
    from opreplay.replay.ops.register import canonical_name
    from opreplay.replay.plan.build import build_plan
    from opreplay.replay.resolve.meta.outputs import with_outputs
    from opreplay.replay.resolve.names import find_overload
    from opreplay.replay.resolve.policy import Policy
    from opreplay.traces import read_trace

    executor = TorchExecutor("cpu", partial(find_overload, policy=Policy()), memory_bytes=10**9)
    registry = built_in()
    shares: list[tuple[float, str, float]] = []
    for op in with_outputs(build_plan(read_trace(path))).ops:
        if op.reason is not None or over_budget(op, 10**9) is not None:
            continue
        try:
            prepared = executor.prepare(op, seed=0)
            start = perf_counter()
            measure(executor, prepared, MeasureOptions())
            loop = perf_counter() - start
        except (NotReplayable, RuntimeError):
            continue
        context = InitContext(
            op=canonical_name(op.name),
            args=tensors.arguments(op, device=torch.device("cpu")),
            outputs=op.outputs,
            generator=torch.Generator().manual_seed(0),
            batch=op.batch,
            metas={arg.name: arg.tensors for arg in op.args if arg.tensors},
        )
        start = perf_counter()
        DenseInit().initialize(context)
        rule = registry.find(context)
        if rule is not None:
            registry.apply(rule, context)
        took = perf_counter() - start
        shares.append((took / loop, op.name, took))
    if not shares:
        print(f"{path.name}: no op was replayed")
        return
    middle = median(share for share, _, _ in shares)
    print(f"{path.name}: {len(shares)} ops, initialising takes {middle:.2%} of the loop (median)")
    for share, name, took in sorted(shares, reverse=True)[:3]:
        print(f"    {share:8.1%}  {1e3 * took:8.1f} ms  {name}")


def main() -> None:
    """Measure one batch, then the traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--trace", type=Path, nargs="*", default=[])
    parser.add_argument("--only", default="", metavar="NAME")
    args = parser.parse_args()
    one_batch(args.tokens, args.only)
    for path in args.trace:
        one_trace(path)


if __name__ == "__main__":
    main()
