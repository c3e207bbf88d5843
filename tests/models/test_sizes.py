"""Sizes of forwards of layers of several kinds: what is held, cached and multiplied.

Published models are built as large as they are on torch's meta device, where tensors have no data.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from decoders.files import CONFIG, write
from nearfree.backends.names import BackendRelease
from nearfree.core.modules.registry import kind_of
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.decoders.ranks.modules import modules
from nearfree.decoders.weights import stored
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models.small import SHARED, document

TODAY = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "gemma2", "gemma3_text", "gemma4_text",
    "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "llama4_text", "mistral4",
)  # fmt: skip
BUFFERS = ("e_score_correction_bias", "layer_scalar")
"""What transformers keeps as buffers, which are no parameters."""
LATENT, ROPE = 512, 64
N, CONTEXT = 4, 4096


class Asked(RandomWeights):
    """Weights without data, kept by name."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16, "meta")
        self.made: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight, and keep it."""
        self.made[name] = super().__call__(name, shape)
        return self.made[name]

    @property
    def parameters(self) -> int:
        """Elements of all that are parameters."""
        parts = (weight for name, weight in self.made.items() if not name.endswith(BUFFERS))
        return sum(part.numel() for part in parts)


def build(path: Path) -> tuple[DecoderForward, Asked]:
    """Return the forward of a config file on the meta device, and its weights."""
    weights = Asked()
    forward = DecoderForward(
        read_decoder(path), read_details(path), weights, batch=1, context=CONTEXT, max_positions=N,
        dtype=torch.bfloat16, device="meta", routing="balanced", moe="torch_grouped",
    )  # fmt: skip
    return forward, weights


def elements_cached(forward: DecoderForward) -> list[int]:
    """Return the elements that each layer caches of a position; a latent's values are its own."""
    counted = []
    for cache in {id(cache): cache for cache in forward.caches}.values():
        parts = [cache.keys, cache.index_keys]
        parts += [] if cache.values._base is cache.keys else [cache.values]
        held = sum(part.numel() for part in parts if part is not None)
        counted.append(held // (CONTEXT + N))
    return counted


MORE: dict[str, dict[str, Any]] = {
    "gemma4_text": {
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "more"),
    [*((kind, MORE.get(kind, {})) for kind in TODAY), ("gemma4_text", SHARED)],
    ids=lambda weight: weight if isinstance(weight, str) else f"{len(weight)} keys",
)
def test_a_forward_holds_what_is_stored(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    """Its parameters and cache are those that the memory estimate counts."""
    path = write(tmp_path, document(kind, **more), "config.json")
    forward, weights = build(path)
    footprint = stored(path)
    assert weights.parameters == sum(weight.elements for weight in footprint.weights)
    every = sum(layer.layers * layer.elements for layer in footprint.cache)
    assert sum(elements_cached(forward)) == every


@pytest.mark.parametrize(
    ("model", "parameters", "cached"),
    [("deepseek_v2_lite", 15.7e9, [LATENT + ROPE] * 27), ("gpt_oss_20b", 20.9e9, [1024] * 24)],
)
def test_published_models_have_their_sizes(
    model: str, parameters: float, cached: list[int]
) -> None:
    """15.7 and 20.9 billion parameters; 576 elements a layer of a latent, 2 x 8 x 64 of gpt-oss.

    Source: the models' cards, deepseek-ai/DeepSeek-V2-Lite and openai/gpt-oss-20b.
    """
    forward, weights = build(CONFIG / "models" / f"{model}.json")
    assert weights.parameters == pytest.approx(parameters, rel=3e-3)
    assert elements_cached(forward) == cached


def test_products_of_shared_caches_are_what_torch_counts(tmp_path: Path) -> None:
    """Layers that share a cache make queries alone, and inputs of layers' own are products."""
    path = write(tmp_path, document("gemma4_text", **SHARED), "config.json")
    decoder, (forward, _) = read_decoder(path), build(path)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        forward.forward(torch.zeros(1, N, dtype=torch.int64, device="meta"))
    torch_sdpa = BackendRelease("torch_sdpa")
    uses = modules(decoder, batch=1, context=CONTEXT, attention=torch_sdpa, moe=None, routing=None)
    assert {"layer inputs", "layer input gate", "layer input projection"} < {
        use.role for use in uses
    }
    expected = sum(
        use.count * kind_of(use.setting).executed(use.setting, N, "").flop_executed
        for use in uses
        if use.setting.module in ("gemm", "dense_ffn")
    )
    assert counter.get_flop_counts()["Global"][torch.ops.aten.mm] == expected


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek_v2_lite", "gpt_oss_20b"])
def test_products_are_what_torch_counts(model: str) -> None:
    """The FLOPs of all products but routed experts' are those that torch's counter sees.

    It counts neither grouped products nor torch's flash kernel; on the meta device it sees both
    products of latent attention, over the whole key.
    """
    path = CONFIG / "models" / f"{model}.json"
    decoder, (forward, _) = read_decoder(path), build(path)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        forward.forward(torch.zeros(1, N, dtype=torch.int64, device="meta"))
    expected = 0
    for use in modules(
        decoder, batch=1, context=CONTEXT, attention=BackendRelease("torch_sdpa"),
        moe=BackendRelease("torch_grouped"), routing="balanced",
    ):  # fmt: skip
        if use.setting.module in ("gemm", "dense_ffn"):
            expected += use.count * kind_of(use.setting).executed(use.setting, N, "").flop_executed
    if model == "deepseek_v2_lite":
        expected += 4 * (LATENT + ROPE) * decoder.heads * N * (CONTEXT + N) * decoder.layers
    assert counter.get_total_flops() == expected
