"""Widths of embedding tables and other sizes that traces of recommendation models lack."""

from __future__ import annotations

import pytest

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.guess.embedding_tables import TABLE_RULES, WIDTH_RULES
from opreplay.replay.resolve.guess.values import Context, Relatives
from opreplay.traces.model import OpSignature, TensorMeta


def known(**args: tuple[int, ...] | int) -> Call:
    return Call(
        {
            name: ReplayArg(name=name, type="int", value=value)
            if isinstance(value, int)
            else ReplayArg(name=name, type="Tensor", tensors=(TensorMeta(shape=value, dtype="float32"),))
            for name, value in args.items()
        }
    )


def reading(name: str, *shape: int) -> Context:
    reader = OpSignature(name=name, dims=(shape,), types=("float",))
    return Context(relatives=lambda: Relatives(following=(OpSignature(name="aten::empty", dims=((),)), reader)))


@pytest.mark.parametrize(
    ("args", "context", "total"),
    [
        (
            {"D_offsets": (123,), "offsets": (122 * 8192 + 1,), "dev_weights": (7487072,), "momentum1_dev": (90837,)},
            reading("All2All_Pooled_Req", 8192, 8816),
            8816,
        ),
        ({"D_offsets": (2,), "offsets": (8193,), "dev_weights": (96000,), "momentum1_dev": (1000,)}, Context(), 96),
        (
            {"D_offsets": (2,), "offsets": (8193,), "dev_weights": (96000,), "momentum1_dev": (1000,)},
            reading("aten::cat", 8192, 8816),
            96,
        ),
        ({"D_offsets": (4,), "offsets": (385,), "dev_weights": (0,), "uvm_weights": (4800,)}, Context(), 3 * 64),
        ({"D_offsets": (3,), "offsets": (33,), "dev_weights": (112,)}, reading("aten::split", 16, 416), 2 * 16),
    ],
    ids=[
        "what is read next",
        "optimizer state",
        "optimizer state before what is read next",
        "largest that fits",
        "not more than there are weights",
    ],
)
def test_total_width(args: dict[str, tuple[int, ...]], context: Context, total: int) -> None:
    guess = WIDTH_RULES["int", "total_D"](known(**args), context)
    assert guess is not None
    assert guess.value == total
    widest = WIDTH_RULES["int", "max_D"](known(D_offsets=args["D_offsets"], total_D=total), context)
    assert widest is not None
    assert widest.value % 4 == 0
    assert widest.value * (args["D_offsets"][0] - 1) >= total


def test_no_tables_no_guess() -> None:
    assert WIDTH_RULES["int", "total_D"](known(dev_weights=(10,)), Context()) is None


def test_columns_of_a_dense_form_are_those_of_what_reads_it() -> None:
    rule = TABLE_RULES["sparse_label_to_dense", "size"]
    guess = rule(known(lengths=(1024,)), reading("aten::reshape", 1024, 37))
    assert guess is not None
    assert guess.value == 37
    fallback = rule(known(lengths=(1024,)), Context())
    assert fallback is not None
    assert "the trace does not show the value" in fallback.why


def test_truncation_is_the_mean_length_that_is_read() -> None:
    rule = TABLE_RULES["lengths_range_w_truncation_size", "truncation_size"]
    guess = rule(known(lengths=(262144,)), reading("fb::fast_gather", 8856548))
    assert guess is not None
    assert guess.value == 34
