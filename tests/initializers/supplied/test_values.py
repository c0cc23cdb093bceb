"""Values that the user supplies: which argument a name means, and that exactly they are what an op gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from opreplay.initializers.base import InitializerError
from opreplay.initializers.supplied.safetensors import DTYPES
from opreplay.initializers.supplied.values import RecordedValues
from opreplay.traces.errors import FormatError

SPELLED = {torch_name: name for name, (torch_name, _) in DTYPES.items()}


def save(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A .safetensors file, written as the format says."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
        spelled = SPELLED[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {
            "dtype": spelled,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_values_reach_their_arguments_and_nothing_else(tmp_path: Path) -> None:
    ids, weight = torch.tensor([[3, 1], [2, 0]]), torch.randn(5, 3, dtype=torch.bfloat16)
    values = RecordedValues(
        save(
            tmp_path / "v.safetensors",
            {
                "aten::embedding.indices": ids,
                "aten::embedding.weight": weight,
                "aten::other.indices": ids,
            },
        )
    )
    args = {"weight": torch.zeros(5, 3, dtype=torch.bfloat16), "indices": torch.zeros(2, 2, dtype=torch.int64)}
    said = values.write("0" * 12, "aten::embedding", args)
    assert torch.equal(args["indices"], ids)
    assert torch.equal(args["weight"], weight)
    assert said == dict.fromkeys(("indices", "weight"), "recorded values of v.safetensors")
    assert values.write("0" * 12, "aten::embedding_bag", args) == {}


@pytest.mark.parametrize("dtype", [d for d in sorted(SPELLED) if hasattr(torch, d)])
def test_every_dtype_keeps_its_bytes(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    wanted = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0] * 2, dtype=torch.uint8)[: 2 * kind.itemsize].view(kind)
    target = torch.zeros_like(wanted)
    RecordedValues(save(tmp_path / "v.safetensors", {"a::b.x": wanted})).write("id", "a::b", {"x": target})
    assert torch.equal(target.view(torch.uint8), wanted.view(torch.uint8))


def test_elements_of_lists_strided_targets_and_empty_tensors(tmp_path: Path) -> None:
    wanted = torch.arange(6).reshape(2, 3)
    values = RecordedValues(
        save(tmp_path / "v.safetensors", {"aten::index.indices.1": wanted, "aten::index.self": torch.zeros(0, 4)})
    )
    target = torch.zeros(3, 2, dtype=torch.int64).t()
    said = values.write("id", "aten::index", {"indices": [None, target], "self": torch.zeros(0, 4)})
    assert torch.equal(target, wanted)
    assert set(said) == {"indices[1]", "self"}


def test_an_id_says_more_than_a_name(tmp_path: Path) -> None:
    file = save(tmp_path / "v.safetensors", {"0123456789ab.x": torch.ones(2), "a::b.x": torch.zeros(2)})
    one, other = {"x": torch.full((2,), 7.0)}, {"x": torch.full((2,), 7.0)}
    values = RecordedValues(file)
    values.write("0123456789ab", "a::b", one)
    values.write("ffffffffffff", "a::b", other)
    assert (one["x"].tolist(), other["x"].tolist()) == ([1, 1], [0, 0])


def test_what_does_not_fit_stops_the_op(tmp_path: Path) -> None:
    values = RecordedValues(save(tmp_path / "v.safetensors", {"a::b.x": torch.ones(2)}))
    with pytest.raises(InitializerError, match=r"\[2\], but the argument has shape \[3\]"):
        values.write("id", "a::b", {"x": torch.zeros(3)})
    with pytest.raises(InitializerError, match="no tensor"):
        values.write("id", "a::b", {"y": torch.zeros(2)})


@pytest.mark.parametrize("key", ["x", "", ".x", "a::b.", "a::b.not an argument", "a::b.0"])
def test_names_of_another_form_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(FormatError, match="is not the name of an op's argument"):
        RecordedValues(save(tmp_path / "v.safetensors", {key: torch.ones(1)}))


def test_two_tensors_for_one_element_are_refused(tmp_path: Path) -> None:
    ids = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(FormatError, match="two tensors for the same argument"):
        RecordedValues(save(tmp_path / "v.safetensors", {"aten::index.indices.1": ids, "aten::index.indices.01": ids}))
