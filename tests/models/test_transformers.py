"""A forward gives the logits of transformers' own, over a cache that transformers filled."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders.files import write
from nearfree.models.attention import Mask
from nearfree.models.forward import DecoderForward
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from models.given_weights import GivenWeights
from models.small import BATCH, CONTEXT, POSITIONS, document, error, make_forward, tokens

pytestmark = pytest.mark.usefixtures("inference")

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
CASES: dict[str, dict[str, Any]] = {
    "llama": document("llama"),
    "llama_llama3": document("llama", rope_scaling=LLAMA3),
    "llama_yarn": document("llama", rope_scaling=YARN),
    "llama_linear": document("llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama_bias": document("llama", attention_bias=True, tie_word_embeddings=True),
    "mistral": document("mistral"),
    "mistral_window": document("mistral", sliding_window=12),
    "mixtral": document("mixtral"),
    "qwen2": document("qwen2"),
    "qwen2_moe": document("qwen2_moe"),
    "qwen3": document("qwen3"),
    "qwen3_moe": document("qwen3_moe"),
    "qwen3_moe_sums": document("qwen3_moe", norm_topk_prob=False),
}
BARS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Theirs:
    """A model of transformers with random weights, and the cache that it filled with L tokens.

    It computes in float32; weights and cache are rounded to a dtype.
    """

    def __init__(self, folder: Path, config: dict[str, Any], dtype: torch.dtype) -> None:
        write(folder, config, "config.json")
        self.dtype = dtype
        self.model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), attn_implementation="eager", dtype=torch.float32
        ).eval()
        generator = torch.Generator().manual_seed(3)
        for parameter in self.model.parameters():
            scale, centre = (parameter.shape[-1] ** -0.5, 0.0) if parameter.ndim > 1 else (0.1, 1.0)
            parameter.copy_(
                (centre + scale * torch.randn(parameter.shape, generator=generator)).to(dtype)
            )
        self.cache = DynamicCache()
        self.model(tokens(CONTEXT, seed=2), past_key_values=self.cache)
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys.to(dtype).float(), layer.values.to(dtype).float()

    def logits(self, given: Tensor, mask: Mask) -> Tensor:
        """Return the logits of tokens after the context, and leave the cache as it is."""
        n = given.shape[1]
        everything = torch.zeros(BATCH, 1, n, CONTEXT + n)
        out: Tensor = self.model(
            given,
            attention_mask=everything if mask == "block" else None,
            past_key_values=deepcopy(self.cache),
        ).logits
        return out


def ours(folder: Path, config: dict[str, Any], theirs: Theirs, **options: Any) -> DecoderForward:
    """Return our forward with the weights and the cache of theirs."""
    weights = GivenWeights(theirs.model.state_dict(), theirs.dtype)
    forward = make_forward(folder, config, weights=weights, dtype=theirs.dtype, **options)
    for index, layer in enumerate(theirs.cache.layers):
        forward.keys[index][:, :, :CONTEXT] = layer.keys
        forward.values[index][:, :, :CONTEXT] = layer.values
    return forward


@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    """The same weights, cache and tokens give the same logits, at every N and under both masks.

    In 16 bits each token has all experts: which of two with nearly one score is chosen is rounding.
    """
    config = CASES[case]
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts and dtype == torch.bfloat16:
        config = config | {"num_experts_per_tok": experts}
    theirs = Theirs(tmp_path, config, dtype)
    masks: tuple[Mask, ...] = ("causal",) if config.get("sliding_window") else ("causal", "block")
    for mask in masks:
        forward = ours(tmp_path, config, theirs, mask=mask)
        for n in POSITIONS:
            difference = error(forward.forward(tokens(n)), theirs.logits(tokens(n), mask))
            assert difference < BARS[dtype]


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_names_of_transformers(tmp_path: Path, case: str) -> None:
    """A forward asks for each weight of transformers' model once; a tied head is the embedding."""
    config = CASES[case]
    theirs = Theirs(tmp_path, config, torch.float32).model.state_dict()
    names = []

    class Asked(GivenWeights):
        def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
            names.append(name)
            return super().__call__(name, shape)

    make_forward(tmp_path, config, weights=Asked(theirs, torch.float32))
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    assert sorted(names) == sorted(set(theirs) - tied)
