"""The cache of predictions: keyed by everything that counts, bounded, the same as without it."""

from __future__ import annotations

import msgspec
import pytest

from opreplay.replay.ascend import KernelCall, Predictor, TensorSpec, load_device, predict_kernel
from opreplay.replay.ascend.cost import predictor

DEVICE = load_device("910b3")


def attention(kv_len: int) -> KernelCall:
    query = TensorSpec(shape=(16, 8, 1, 128), dtype="bfloat16")
    cache = TensorSpec(shape=(512, 8, 128, 128), dtype="bfloat16")
    attrs: dict[str, int | float | bool | str | tuple[int, ...]] = {
        "pairs": 16 * 8 * kv_len,
        "rows": 128,
        "head_dim": 128,
    }
    return KernelCall(type="FusedInferAttentionScore", inputs=(query, cache, cache), outputs=(query,), attrs=attrs)


def test_sequence_lengths_are_part_of_the_key() -> None:
    """The model this replaces returned the time of a decode step at 128 for one at 8192."""
    predict = Predictor(DEVICE)
    short, long = predict(attention(128)), predict(attention(8192))
    assert long.time_us > short.time_us
    assert predict(attention(128)) is short
    assert long == predict_kernel(attention(8192), DEVICE)


def test_tensors_state_and_device_are_part_of_the_key() -> None:
    add = KernelCall(type="Add", inputs=(TensorSpec(shape=(1 << 22,), dtype="float32"),) * 2, outputs=())
    half = msgspec.structs.replace(add, inputs=(TensorSpec(shape=(1 << 22,), dtype="float16"),) * 2)
    predict = Predictor(DEVICE)
    assert predict(add).time_us != predict(half).time_us
    assert predict(add, 0.0).time_us > predict(add, 1.0).time_us
    assert predict(add, 0.501) == predict_kernel(add, DEVICE, 0.5)
    assert predict(add, 0.5, "network", 0.999) == predict_kernel(add, DEVICE, 0.5, "network", 1.0)
    assert predict(add, 0.5, "network", 1.0).time_us < predict(add, 0.5).time_us
    slower = msgspec.structs.replace(DEVICE, hbm_bytes_per_s=DEVICE.hbm_bytes_per_s / 2)
    assert Predictor(slower)(add, 0.0).time_us > predict(add, 0.0).time_us


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MAX_CACHED", 3)
    predict = Predictor(DEVICE)
    for n in range(1, 30):
        predict(attention(n))
    assert len(predict._predictions) <= 3
