"""Texts that say how an op computes are taken by its stand-in, or refused: none is ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ops.register import (
    INERT,
    ONE_MODE,
    implemented,
    stand_in_of,
    untaken_modes,
    versions_declared,
)

REFUSED_BUT_FOR_THE_DEFAULT = {
    "activation", "activation_str", "input_softmax_layout", "quant_mode", "reduce", "shared_expert_scoring_func",
    "softmax_layout",
}  # fmt: skip


def schemas() -> list[tuple[str, Any, Any]]:
    names = [name for names in implemented().values() for name in names]
    return [(name, one.run, parse_schema(one.schema)) for name in names for one in versions_declared(name)]


def test_every_text_is_taken_or_refused_or_listed() -> None:
    untaken = {(name, mode) for name, run, schema in schemas() for mode in untaken_modes(run, schema)}
    assert {mode for one, mode in untaken if (one, mode) not in ONE_MODE} == REFUSED_BUT_FOR_THE_DEFAULT
    assert untaken >= ONE_MODE, "listed, but taken"


def test_an_untaken_mode_has_a_default() -> None:
    for name, run, schema in schemas():
        texts = {argument.name: argument for argument in schema.arguments}
        assert all(texts[mode].has_default_value() for mode in untaken_modes(run, schema)), name


def test_inert_texts_are_those_of_a_schema() -> None:
    texts = {arg.name for _, _, schema in schemas() for arg in schema.arguments if "str" in str(arg.type)}
    assert texts >= INERT


@pytest.mark.parametrize("mode", ["pertensor", "pergroup"])
def test_another_mode_than_the_default_is_refused(mode: str) -> None:
    quantise = stand_in_of("npu::npu_dynamic_quant_asymmetric")
    assert quantise is not None
    assert quantise(torch.randn(4, 8))[0].shape == (4, 8)
    with pytest.raises(ValueError, match=mode):
        quantise(torch.randn(4, 8), quant_mode=mode)
