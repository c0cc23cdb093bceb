"""Captures a step of a model from its config file alone: `hf:CONFIG.json`, built by transformers without weights.

Defines the phases and their inputs. Nothing is downloaded, and no code that a config names is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from opreplay.replay.capture import grouped_heads, latent
from opreplay.replay.capture.config_file import config_fields, config_file, transformers_library
from opreplay.replay.capture.experts import spread_experts
from opreplay.replay.capture.failures import is_of_fakes
from opreplay.replay.capture.parallel import Stage, split_model
from opreplay.replay.capture.step import Step
from opreplay.traces.errors import OpReplayError, UsageError

ModelPhase = Literal["prefill", "decode", "train"]
Mla = Literal["absorbed", "expanded"]
DTYPES = ("bfloat16", "float16", "float32")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a model's inputs, and how the model is split over ranks."""

    phase: ModelPhase = "prefill"
    batch: int = 1
    """Number of sequences."""
    context: int = 1024
    """Tokens per sequence. For prefill and training these are the new tokens, for decode the tokens already in the
    cache.
    """
    dtype: str = "bfloat16"
    """Dtype of the parameters."""
    expert_parallel: int = 1
    """Number of ranks over which experts are distributed."""
    tensor_parallel: int = 1
    """Number of ranks over which attention heads, layer widths and the vocabulary are split."""
    pipeline_parallel: int = 1
    """Number of stages over which the layers are split."""
    mla: Mla = "absorbed"
    """Form of latent attention (MLA) that decode uses."""

    @property
    def spreads(self) -> bool:
        """Whether each rank that holds experts has tokens of its own. If so, ranks exchange tokens."""
        return self.expert_parallel > 1 and self.tensor_parallel == 1

    @property
    def ranks(self) -> int:
        """Number of ranks in the job. Raises UsageError for inconsistent splits."""
        split = self.tensor_parallel * self.pipeline_parallel
        if split == 1 or self.expert_parallel == 1:
            return split * self.expert_parallel
        if self.expert_parallel != self.tensor_parallel:
            raise UsageError(
                f"--expert-parallel is {self.expert_parallel}, but --tensor-parallel is {self.tensor_parallel}",
                hint=(
                    "Use the same number for both, so that each tensor rank has whole experts; or use only one of them."
                ),
            )
        return split


def maker(path_text: str, shape: Shape) -> Callable[[], Step]:
    """Return a function that creates the step for a model whose config file is given.

    Raises UsageError for an invalid file, EnvironmentRefused if transformers is not installed.
    """
    config = config_of(config_file(path_text))
    return lambda: _step(config, shape)


def has_context(path_text: str) -> bool:
    """Check whether a step of a model's config file depends on the number of tokens in its sequences."""
    config = config_of(config_file(path_text))
    return takes_tokens(class_of(config), config)


def notes_of(path_text: str, shape: Shape) -> tuple[str, ...]:
    """Return notes on details of transformers' code that affect times."""
    notes: list[str] = []
    config = config_of(config_file(path_text))
    if getattr(config, "is_encoder_decoder", False) and takes_tokens(class_of(config), config):
        notes.append(f"the encoder and the decoder each take {shape.context:,} tokens per sequence")
    if shape.phase == "decode" and getattr(config, "kv_lora_rank", None):
        notes.append(latent.NOTE if shape.mla == "absorbed" else latent.EXPANDED)
    if shape.phase != "train" and grouped_heads.repeats_heads(config):
        notes.append(grouped_heads.NOTE)
    if (method := _quantization(config_fields(config_file(path_text)))) is not None:
        notes.append(
            f"the quantization in the config ({method}) is ignored: without --weights, all weights are {shape.dtype}"
        )
    if shape.phase == "train" and shape.ranks > 1:
        notes.append("gradients of parameters that the ranks share are not exchanged")
    return tuple(notes)


def _quantization(fields: dict[str, Any]) -> str | None:
    """Return the name of the quantization that a config file gives its weights; None if it gives none."""
    for part in (fields, fields.get("text_config")):
        quantization: Any = part.get("quantization_config") if isinstance(part, dict) else None
        if isinstance(quantization, dict) and quantization:
            method = quantization.get("quant_method")
            return method if isinstance(method, str) and re.fullmatch(r"[\w.-]{1,40}", method) else "of unknown method"
    return None


def config_of(path: Path) -> Any:
    """Return the config that transformers reads from a file."""
    fields = config_fields(path)
    kind = fields["model_type"]
    transformers = transformers_library()
    if kind not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"transformers {transformers.__version__} does not know model_type {kind!r}",
            hint="Use a newer version, or write the model as FILE.py:make.",
        )
    # What a file may say of code, weights and their quantisation is not for a model without weights.
    architecture = {name: value for name, value in fields.items() if name not in ("auto_map", "quantization_config")}
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(architecture)
    except Exception as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{path}: {type(error).__name__}: {why}", hint="Use the model's config.json.") from error


_TURNED = ("rope_parameters", "rope_scaling", "rope_theta")
"""Config fields of models with rotary positions. These positions are angles, so they support any length."""


def _check_positions(config: Any, shape: Shape) -> None:
    """Raise UsageError if there are more tokens than rows in a table of positions. Fake tensors do not detect this."""
    text = getattr(config, "text_config", config)
    rows = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)  # the latter in MPT
    tokens = shape.context + (shape.phase == "decode")
    if isinstance(rows, int) and tokens > rows and all(getattr(text, name, None) is None for name in _TURNED):
        raise UsageError(
            f"{config.model_type} has {rows:,} positions, but {tokens:,} tokens are requested",
            hint=(f"Use --context {rows - (shape.phase == 'decode')} or less, or a config with more positions."),
        )


def _step(config: Any, shape: Shape) -> Step:
    """Build the step; must run with fake tensors enabled."""
    _check_positions(config, shape)
    model = _model(config, shape)
    if shape.spreads:
        spread_experts(model, shape.expert_parallel)
    whole_experts = shape.expert_parallel > 1
    stage = split_model(model, shape.tensor_parallel, shape.pipeline_parallel, whole_experts=whole_experts)
    if shape.phase == "train":
        return _training(model, shape, stage)
    model.eval()
    return _decoding(model, config, shape, stage) if shape.phase == "decode" else _prefill(model, shape, stage)


def _model(config: Any, shape: Shape) -> Any:
    from transformers.initialization import no_init_weights  # pyright: ignore

    dtype = getattr(torch, shape.dtype)
    # Real weights must be drawn; fake ones hold nothing.
    with no_init_weights() if isinstance(torch.empty(0), FakeTensor) else nullcontext():
        model = class_of(config)._from_config(deepcopy(config), dtype=dtype)
    model.tie_weights()  # part of what draws them, which fake ones skip
    return model


def class_of(config: Any) -> Any:
    """Return the transformers class that the config names. If it names none, return the class for its model type, for
    text generation if possible.
    """
    transformers = transformers_library()
    for name in getattr(config, "architectures", None) or ():
        model_class = getattr(transformers, str(name), None)
        if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
            return model_class
    of_both = (transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq)
    alone = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    for auto in (*(of_both if getattr(config, "is_encoder_decoder", False) else alone), transformers.AutoModel):
        if type(config) in auto._model_mapping:
            classes = auto._model_mapping[type(config)]
            return classes[0] if isinstance(classes, tuple) else classes
    raise UsageError(f"transformers has no model of {config.model_type}", hint=_BY_HAND)


def _ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.zeros(batch, tokens, dtype=torch.long)


def inputs_of(model: Any, shape: Shape) -> dict[str, torch.Tensor]:
    """Return the inputs of the model's forward by name.

    They are tokens, an image or a video, a spectrogram, audio samples, or a time series, as the model requires. Raises
    UsageError for a model whose config does not give its input sizes.
    """
    config, taken = model.config, signature(model.forward).parameters
    takes_ids = takes_tokens(type(model), config)
    inputs: dict[str, torch.Tensor] = {}
    sees = hasattr(config, "vision_config") or (hasattr(config, "image_size") and hasattr(config, "vocab_size"))
    for name, size_of in _SIZES.items():
        is_image = name == "pixel_values" and sees and name in taken
        if (name == model.main_input_name or is_image) and (size := size_of(config)) is not None:
            inputs[name] = torch.zeros(shape.batch, *size, dtype=model.dtype)
    if "image_grid_thw" in taken:
        inputs |= _patches(config.vision_config, shape.batch, model.dtype)
    if takes_ids:
        inputs["input_ids"] = _ids(shape.batch, shape.context)
        if "pixel_values" in inputs and hasattr(config, "image_token_id"):
            _place_image(model, inputs)
    if not inputs:
        raise UsageError(
            f"the config does not give the size of {model.main_input_name}, the input of {type(model).__name__}",
            hint=_BY_HAND,
        )
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _ids(shape.batch, shape.context if takes_ids else 1)
    return inputs


def takes_tokens(model_class: Any, config: Any) -> bool:
    """Check whether a model reads text. For other models, the config gives the sizes of all inputs, whatever the
    context is.
    """
    reads = "input_ids" in signature(model_class.forward).parameters
    return reads and (model_class.main_input_name == "input_ids" or hasattr(config, "text_config"))


SAMPLES = 16000
"""Number of audio samples: one second at the sampling rate with which speech models are trained."""
IMAGE = 224
"""Height and width of images, in pixels, if the config gives none, as for convolutional models, which accept
any size.
"""
_BY_HAND = "Write it as FILE.py:make, with its inputs."


def _image(config: Any) -> tuple[int, ...] | None:
    """Return the shape [channels, height, width], with the number of frames first for a video."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or IMAGE
    height, width = (size, size) if isinstance(size, int) else size
    image = (int(getattr(vision, "num_channels", 3)), int(height), int(width))
    return (int(vision.num_frames), *image) if hasattr(vision, "num_frames") else image


def _spectrogram(config: Any) -> tuple[int, ...] | None:
    """Return the shape [mel bins, frames] of a spectrogram; None if the config does not give it."""
    positions, bins = getattr(config, "max_source_positions", None), getattr(config, "num_mel_bins", None)
    if positions is None or bins is None:
        return None
    return int(bins), 2 * int(positions)  # the first convolutions halve the frames


def _sound(config: Any) -> tuple[int, ...] | None:
    """Return the shape of an audio input: [samples] or [channels, samples]; [frames, mel bins] for a spectrogram."""
    bins, channels = getattr(config, "num_mel_bins", None), getattr(config, "audio_channels", None)
    if bins is not None and getattr(config, "max_length", None):
        return int(config.max_length), int(bins)
    return (SAMPLES,) if channels is None else (int(channels), SAMPLES)


def _series(config: Any) -> tuple[int, ...] | None:
    """Return the shape [times, channels] of a time series; None if the config does not give it."""
    times, channels = getattr(config, "context_length", None), getattr(config, "num_input_channels", None)
    return None if times is None or channels is None else (int(times), int(channels))


_SIZES: dict[str, Callable[[Any], tuple[int, ...] | None]] = {
    "pixel_values": _image, "input_features": _spectrogram, "input_values": _sound, "past_values": _series,
}  # fmt: skip
"""Name of an input → function that returns the input's size for a config. The size does not include the batch. It is
None if the config does not give it.
"""


def _patches(vision: Any, batch: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return one image per sequence: a tensor with the patches of all images, and the numbers of patches in time,
    height and width.
    """
    block = vision.patch_size * vision.spatial_merge_size
    rows = vision.spatial_merge_size * max(1, IMAGE // block)
    elements = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
    return {
        "pixel_values": torch.zeros(batch * rows * rows, elements, dtype=dtype),
        "image_grid_thw": torch.tensor([[1, rows, rows]] * batch),
    }


def _place_image(model: Any, inputs: dict[str, torch.Tensor]) -> None:
    """Replace the first tokens of each sequence with placeholders for the image features.

    Raises UsageError if there are too few tokens.
    """
    ids, image_inputs = inputs["input_ids"], {name: value for name, value in inputs.items() if name != "input_ids"}
    with torch.no_grad(), _guessed(model, image_inputs):
        features = model.get_image_features(**image_inputs)
    width = model.get_input_embeddings().embedding_dim
    tokens = sum(part.numel() for part in tree_leaves(features.pooler_output)) // (width * ids.shape[0])
    if tokens >= ids.shape[1]:
        raise UsageError(
            f"an image takes {tokens} tokens, but the context has only {ids.shape[1]}", hint="Use a larger --context."
        )
    ids[:, :tokens] = model.config.image_token_id
    if "mm_token_type_ids" in signature(model.forward).parameters:
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).int()


@contextmanager
def _guessed(model: Any, inputs: Iterable[str]) -> Generator[None, None, None]:
    """Context for running a model on inputs derived from its config. If the model requires other inputs, its error
    becomes a UsageError.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OpReplayError) or is_of_fakes(error):
            raise
        lines = str(error).strip().splitlines() or [""]
        raise UsageError(
            f"{type(model).__name__} does not run on the inputs {', '.join(inputs)} made from its "
            f"config: {type(error).__name__}: {lines[0]}",
            hint=_BY_HAND,
        ) from error


def _training(model: Any, shape: Shape, stage: Stage) -> Step:
    model.train()
    if model.main_input_name != "input_ids" or "labels" not in signature(model.forward).parameters:
        raise UsageError(
            f"training {type(model).__name__} needs targets other than token labels",
            hint="Write it as FILE.py:make with its loss.",
        )
    if model.config.is_encoder_decoder and getattr(model.config, "decoder_start_token_id", None) is None:
        model.config.decoder_start_token_id = 0  # which token, changes no size
    ids = _ids(shape.batch, shape.context)
    # As on accelerators, where it is the default.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def run() -> Any:
        with _guessed(model, ("input_ids", "labels")):
            output = stage.forward(model, input_ids=ids, labels=ids, use_cache=False)
        stage.backward(output)
        optimizer.step()
        return (output.logits, output.loss) if stage.is_last else output

    return Step(run=run, inputs={"input_ids": ids}, root=model, trains=True)


def _prefill(model: Any, shape: Shape, stage: Stage) -> Step:
    grouped_heads.keep_groups(model)
    inputs: dict[str, Any] = dict(inputs_of(model, shape))
    has_own_length = "pixel_values" in inputs and not hasattr(model.config, "image_token_id")
    if model.can_generate() and not getattr(model.config, "is_encoder_decoder", False) and not has_own_length:
        inputs |= cache_inputs(model, _cache(model.config, shape.context))

    def run() -> Any:
        with torch.no_grad(), _guessed(model, inputs):
            return stage.forward(model, **inputs)

    return Step(run=run, inputs=inputs, root=model)


def _decoding(model: Any, config: Any, shape: Shape, stage: Stage) -> Step:
    """Return a step that decodes one token per sequence. A prefill before the captured step fills the cache."""
    if not model.can_generate() or model.main_input_name != "input_ids" or model.config.is_encoder_decoder:
        raise UsageError(
            f"{config.model_type} cannot generate token by token from text alone",
            hint="Capture it with --phase prefill, or write it as FILE.py:make.",
        )
    grouped_heads.keep_groups(model)
    cache = _cache(model.config, shape.context + 1)
    options = cache_inputs(model, cache)
    if getattr(config, "alibi", False):
        # Without a mask, Falcon computes ALiBi for the tokens so far, which must have the size of the whole cache.
        options["attention_mask"] = torch.ones((shape.batch, shape.context + 1), dtype=torch.long)
    with torch.no_grad():
        stage.forward(model, input_ids=_ids(shape.batch, tokens_that_fill(cache, config, shape.context)), **options)
    if not any(_is_written(layer) for layer in cache.layers):
        raise UsageError(
            f"{type(model).__name__} does not write to the cache that servers pass to a model",
            hint="Capture it with --phase prefill, or write its decoding as FILE.py:make.",
        )
    if shape.mla == "absorbed" and not latent.absorb(model) and getattr(config, "kv_lora_rank", None):
        raise UsageError(
            f"this version of transformers implements the latent attention of {config.model_type} in "
            "a form that cannot be absorbed",
            hint="Use --set mla=expanded to capture it unchanged, or install a newer transformers.",
        )
    ids = _ids(shape.batch, 1)

    def run() -> Any:
        with torch.no_grad():
            return stage.forward(model, input_ids=ids, **options)

    return Step(run=run, inputs={"input_ids": ids, "cache": cache}, root=model)


def tokens_that_fill(cache: Any, config: Any, context: int) -> int:
    """Return how many tokens of each sequence to write to a cache, by a prefill, before the captured step.

    On fake tensors, the step makes the same calls after one token as after all tokens, because the cache has its final
    size from the start. So one token is enough, which saves time: a prefill of all tokens may take most of a capture's
    time. All tokens are needed for a sliding window, which may or may not be full, and for positions read from a table.
    A recurrence has no such table, and may make calls for each token.
    """
    text = getattr(config, "text_config", config)
    turns = any(getattr(text, name, None) is not None for name in _TURNED)
    slides = any(getattr(layer, "is_sliding", False) for layer in cache.layers)
    recurs = any(hasattr(layer, "conv_states") for layer in cache.layers)
    return 1 if (turns or recurs) and not slides and isinstance(torch.empty(0), FakeTensor) else context


CACHES = ("cache", "cache_params", "past_key_values")
"""Names of the cache argument in transformers; they depend on its version and on the model."""


def cache_inputs(model: Any, cache: Any) -> dict[str, Any]:
    """Return arguments that make a model fill a cache and return only the last logits.

    A model that takes no cache gets none.
    """
    taken = signature(model.forward).parameters
    options = {"use_cache": True, "logits_to_keep": 1}
    name = next((name for name in CACHES if name in taken), None)
    if name is None:
        return {option: value for option, value in options.items() if option in taken}
    return {name: cache, **options}


def _is_written(layer: Any) -> bool:
    """Check whether a model wrote to this layer of its cache: keys and values, or the states of a recurrence."""
    states = tree_leaves([getattr(layer, name, None) for name in ("conv_states", "recurrent_states")])
    return bool(getattr(layer, "is_initialized", False)) or any(isinstance(state, torch.Tensor) for state in states)


def _cache(config: Any, tokens: int) -> Any:
    """Return a cache of fixed size, as servers use it. A growing cache would be copied for each token."""
    return transformers_library().StaticCache(config=config, max_cache_len=tokens)
