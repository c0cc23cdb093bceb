"""Record the bundled samples with torch.profiler, on models defined here.

python benchmarks/record_samples.py --out DIR [--only NAME]
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], None]


def record(step: Step, path: Path, *, warm_up: int = 3, recordings: int = 15) -> None:
    """Profile `recordings` calls of `step` on the CPU after `warm_up` unrecorded ones, and write the quickest to `path`
    (gzip).

    The quickest one is disturbed least by other programs and contains no first call of anything.
    """
    from torch.profiler import ProfilerActivity, profile, schedule

    quickest, text = float("inf"), ""
    for _ in range(recordings):
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=0, warmup=warm_up, active=1, repeat=1),
        ) as profiler:
            for _ in range(warm_up):
                step()
                profiler.step()
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
            profiler.step()
        if seconds >= quickest:
            continue
        quickest = seconds
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(plain))
            text = scrub(plain.read_text(), name=path.name.removesuffix(".gz"))
    # No file name and no time in the gzip header: the bytes depend on the profile alone.
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def scrub(text: str, *, name: str) -> str:
    """Return the profile without the machine's name and the file's path; the rest stays as torch wrote it."""
    text = re.sub(r'("host_?name"\s*:\s*)"[^"]*"', r'\1"host"', text)
    return re.sub(r'("traceName"\s*:\s*)"[^"]*"', rf'\1"{name}"', text)


def cnn_train(path: Path) -> None:
    """Run forward, backward and SGD of a residual CNN: images [16, 3, 96, 96], float32."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, inner: int, outer: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outer),
                nn.ReLU(inplace=True),
                nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outer),
            )
            self.skip = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 else nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.skip(x))

    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    images, labels = torch.randn(16, 3, 96, 96), torch.randint(0, 100, (16,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        optimizer.step()

    record(step, path)


def transformer_infer(path: Path) -> None:
    """Run prefill of [4, 128] tokens and three decode steps, with vLLM's iteration marks."""
    import torch
    from torch.profiler import record_function

    batch, prompt, decoded = 4, 128, 3
    torch.manual_seed(0)
    model = decoder_model(layers=2, width=512, heads=8, kv_heads=2, ffn=1408, vocabulary=8192)
    cache = [torch.zeros(2, batch, 2, prompt + decoded, 64, dtype=torch.bfloat16) for _ in range(2)]
    tokens = torch.randint(0, 8192, (batch, prompt))

    @torch.inference_mode()
    def step() -> None:
        with record_function(f"execute_context_{batch}({batch * prompt})_generation_0(0)"):
            following = model(tokens, cache, 0)
        for position in range(prompt, prompt + decoded):
            with record_function(f"execute_context_0(0)_generation_{batch}({batch})"):
                following = model(following, cache, position)

    record(step, path)


def decoder_model(*, layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocabulary: int) -> Any:
    """Return a bfloat16 decoder with RMS norm, rotary positions, grouped-query attention and a gated MLP.

    The result, `model(tokens [B, T], cache [[2, B, kv_heads, max length, head size]] per layer, first position)`,
    writes the cache and returns the next token of each sequence, [B, 1].
    """
    import torch
    from torch.nn import functional

    head = width // heads
    kinds = {"qkv": (heads + 2 * kv_heads) * head, "out": width, "gate_up": 2 * ffn, "down": width}

    def weight(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) / columns**0.5).to(torch.bfloat16)

    embedding, ones = weight(vocabulary, width), torch.ones(width, dtype=torch.bfloat16)
    params = [{k: weight(n, ffn if k == "down" else width) for k, n in kinds.items()} for _ in range(layers)]
    angles = torch.outer(torch.arange(4096), 10000.0 ** -(torch.arange(0, head, 2) / head))
    cos, sin = (f(torch.cat((angles, angles), -1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))

    def norm(x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (width,), ones, 1e-6)

    def rotate(x: torch.Tensor, start: int) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        stop = start + x.shape[-2]
        return x * cos[start:stop] + torch.cat((-second, first), -1) * sin[start:stop]

    def attend(x: torch.Tensor, w: dict[str, torch.Tensor], cache: torch.Tensor, start: int) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = functional.linear(x, w["qkv"]).view(batch, length, -1, head).transpose(1, 2)
        query, key, value = parts.split((heads, kv_heads, kv_heads), 1)
        cache[0, :, :, start : start + length] = rotate(key, start)
        cache[1, :, :, start : start + length] = value
        keys, values = cache[:, :, :, : start + length].repeat_interleave(heads // kv_heads, 2)
        mixed = functional.scaled_dot_product_attention(rotate(query, start), keys, values, is_causal=length > 1)
        return functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), w["out"])

    def model(tokens: torch.Tensor, cache: list[torch.Tensor], start: int) -> torch.Tensor:
        x = functional.embedding(tokens, embedding)
        for w, layer_cache in zip(params, cache, strict=True):
            x = x + attend(norm(x), w, layer_cache, start)
            gate, up = functional.linear(norm(x), w["gate_up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, w["down"])
        return functional.linear(norm(x[:, -1:]), embedding).argmax(-1)

    return model


def moe_block(path: Path) -> None:
    """Run [512, 512] tokens through 8 experts, 2 for each token, and one shared expert; bfloat16."""
    import torch
    from torch.nn import functional

    tokens, width, experts, chosen, ffn = 512, 512, 8, 2, 768
    torch.manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) / shape[-1] ** 0.5).to(torch.bfloat16)

    router, x = weight(experts, width), weight(tokens, width)
    gate_up, down = weight(experts + 1, 2 * ffn, width), weight(experts + 1, width, ffn)

    def expert(rows: torch.Tensor, index: int) -> torch.Tensor:
        gate, up = functional.linear(rows, gate_up[index]).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, down[index])

    @torch.inference_mode()
    def step() -> None:
        scores = functional.linear(x, router).float().softmax(-1)
        weights, ids = scores.topk(chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        rows, share = order // chosen, weights.flatten()[order].to(x.dtype)
        ends = torch.bincount(ids.flatten(), minlength=experts).cumsum(0).tolist()
        result = expert(x, experts)
        for index, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
            mine = rows[start:stop]
            result.index_add_(0, mine, expert(x[mine], index) * share[start:stop, None])

    record(step, path)


def ddp_step(folder: Path) -> None:
    """Run one DDP training step of an MLP, [64, 512] float32 per process, on two gloo processes of this machine."""
    from torch.multiprocessing.spawn import spawn

    with tempfile.TemporaryDirectory() as meeting:
        spawn(_ddp_rank, args=(str(folder), str(Path(meeting) / "store")), nprocs=2)


def _ddp_rank(rank: int, folder: str, store: str) -> None:
    """Run one of the two processes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    layers = [nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    inputs, target = torch.randn(64, 512), torch.randn(64, 512)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), target).backward()
        optimizer.step()

    # One recording, of the same step on both; DDP builds its buckets anew after the first steps.
    record(step, Path(folder) / f"ddp_step_rank{rank}.json.gz", warm_up=10, recordings=1)
    distributed.destroy_process_group()


def main() -> None:
    """Record all samples, or one."""
    one_file = {"cnn_train": cnn_train, "transformer_infer": transformer_infer, "moe_block": moe_block}
    parser = argparse.ArgumentParser(description="Record the bundled samples.")
    parser.add_argument("--out", type=Path, required=True, help="folder that the profiles are written to")
    parser.add_argument("--only", choices=[*one_file, "ddp_step"], help="record this one alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, recorder in one_file.items():
        if options.only in (None, name):
            recorder(options.out / f"{name}.json.gz")
    if options.only in (None, "ddp_step"):
        ddp_step(options.out)
    for path in sorted(options.out.glob("*.json.gz")):
        print(f"{path.stat().st_size / 1000:7.1f} kB  {path}")


if __name__ == "__main__":
    main()
