"""CPU time of the time mode of large tile programs whose bodies look at positions.

    python benchmarks/tile_time_mode.py [--every]

`--every` runs all iterations of loops: what the times must be equal to.

Bar: 1 s for causal attention of 32,768 x 32,768 and cross entropy of 4,096 x 128,256, with the same times as
`--every`.
"""

from __future__ import annotations

import argparse
import time

from opreplay import tile
from opreplay.replay.ascend import load_device
from opreplay.replay.tile.chip import estimate
from opreplay.replay.tile.program import Program, bind
from opreplay.replay.tile.programs import causal_conv1d, flash_attention
from opreplay.traces.model import TensorMeta

SOC = "910b2"


@tile.kernel("bench::cross_entropy")
def cross_entropy(logits, labels, loss: tile.Out, *, columns=8192):
    """Cross entropy of each row, over its columns in chunks: one pass with a running maximum."""
    for r in tile.blocks(logits.shape[0], 1):
        label = tile.load(labels[r]).float()
        top, total, chosen = tile.full((1, 1), -3e38), tile.zeros((1, 1)), tile.zeros((1, 1))
        for c in tile.steps(logits.shape[1], columns):
            x = tile.load(logits[r, c]).float()
            higher = tile.maximum(top, tile.row_max(x))
            total = total * tile.exp(top - higher) + tile.row_sum(tile.exp(x - higher))
            top = higher
            here = tile.compare(tile.arange(c.size, "float32", start=c.start), "==", label)
            chosen = chosen + tile.row_sum(tile.where(here, x, 0.0))
        tile.store(loss[r], tile.ln(total) + top - chosen)


def tensor(dtype: str, *shape: int) -> TensorMeta:
    return TensorMeta(shape=shape, dtype=dtype)


def cases() -> list[tuple[str, Program, dict[str, object]]]:
    listed: list[tuple[str, Program, dict[str, object]]] = []
    for n in (8192, 32768):
        x = tensor("float16", 1, n, 128)
        listed += [
            (f"causal flash attention {n}", flash_attention, {"q": x, "k": x, "v": x, "causal": True}),
            (f"flash attention {n}", flash_attention, {"q": x, "k": x, "v": x}),
        ]
    x, w = tensor("bfloat16", 16384, 8192), tensor("bfloat16", 4, 8192)
    listed.append(("causal convolution 16384 x 8192", causal_conv1d, {"x": x, "w": w}))
    logits = {"logits": tensor("float32", 4096, 128256), "labels": tensor("int32", 4096)}
    listed.append(("cross entropy 4096 x 128256", cross_entropy, {**logits, "loss": tensor("float32", 4096)}))
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", action="store_true", help="run all iterations")
    parser.add_argument("--only", default="", help="cases whose name has this")
    options = parser.parse_args()
    device = load_device(SOC)
    for name, program, arguments in cases():
        if options.only not in name:
            continue
        bound = bind(program, arguments, {})
        begin = time.process_time()
        predicted = estimate(bound, device, every=options.every)
        print(f"{name:34} {time.process_time() - begin:7.2f} s CPU {predicted.time_us!r:>22} us", flush=True)


if __name__ == "__main__":
    main()
