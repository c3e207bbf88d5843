"""Forwards of several kinds of layers give the logits of transformers' own, without a cache there.

Transformers computes all L + N positions anew, in float32; weights and our cache are rounded to a
dtype.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from decoders.files import write
from nearfree.decoders.details import read_details
from nearfree.models.forward import DecoderForward
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM

from models.given_weights import GivenWeights
from models.small import CONTEXT, POSITIONS, SHARED, document, error, make_forward, tokens

pytestmark = pytest.mark.usefixtures("inference")

LATENTS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4")
SELECTING = ("deepseek_v32", "glm_moe_dsa")
GROUPED = ("gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "llama4_text")
CASES: dict[str, dict[str, Any]] = {
    **{kind: document(kind) for kind in (*GROUPED, *LATENTS, *SELECTING)},
    "gemma3_linear": document("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "gemma4_experts": document(
        "gemma4_text", enable_moe_block=True, num_experts=8, top_k_experts=3,
        moe_intermediate_size=24, attention_k_eq_v=True, num_global_key_value_heads=1,
    ),
    "gemma4_shared": document("gemma4_text", **SHARED),
    "gpt_oss_plain": document(
        "gpt_oss", attention_bias=False, rope_scaling={"rope_type": "default"}, swiglu_limit=7.0
    ),
    "llama4_dense": document(
        "llama4_text", interleave_moe_layer_step=4, use_qk_norm=False, rope_scaling=...,
        attn_temperature_tuning=False,
    ),
    "deepseek_v2_lite": document(
        "deepseek_v2", topk_method="greedy", rope_scaling=..., attention_bias=True
    ),
    "deepseek_v3_plain": document("deepseek_v3", rope_scaling=..., rope_interleave=False),
}  # fmt: skip
BARS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
CLASSES = {"mistral4": Mistral4ForCausalLM}
FROM_ONE = ("gemma2", "gemma3_text")
"""Those whose norms multiply by one more than their weights."""
NEIGHBOURS = ("deepseek_v2", "llama4_text")
"""Those whose rotated keys keep pairs as neighbours in transformers' cache; ours are in halves."""


def model_of(folder: Path, config: dict[str, Any], dtype: torch.dtype) -> Any:
    """Return a model of transformers with random weights, rounded to a dtype, in float32.

    Gemma 4 divides no logits by sqrt(head_dim): its norms of queries and keys do that here.
    """
    write(folder, config, "config.json")
    read = AutoConfig.from_pretrained(folder)
    of = CLASSES.get(config["model_type"], AutoModelForCausalLM)
    make = of.from_config if of is AutoModelForCausalLM else of._from_config
    model = make(read, attn_implementation="eager", dtype=torch.float32).eval()
    vectors = 0.0 if config["model_type"] in FROM_ONE else 1.0
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.state_dict().items():
        scale, centre = (parameter.shape[-1] ** -0.5, 0.0) if parameter.ndim > 1 else (0.1, vectors)
        if config["model_type"] == "gemma4_text" and name.endswith(
            ("q_norm.weight", "k_norm.weight")
        ):
            scale, centre = 0.0, parameter.shape[-1] ** -0.25
        parameter.copy_(
            (centre + scale * torch.randn(parameter.shape, generator=generator)).to(dtype)
        )
    return model


def in_our_order(kind: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights whose experts are [E, out, in], first the gate's outputs and then those up."""
    ordered = dict(weights)
    for name, weight in weights.items():
        if kind not in ("gpt_oss", "llama4_text") or ".experts." not in name:
            continue
        if not name.endswith("bias"):
            ordered[name] = weight.transpose(1, 2)
        if kind == "gpt_oss" and "gate_up" in name:
            ordered[name] = torch.cat((ordered[name][:, ::2], ordered[name][:, 1::2]), 1)
    return ordered


def fill(kind: str, forward: DecoderForward, model: Any, dtype: torch.dtype) -> None:
    """Put what transformers caches of L positions into a forward's cache.

    Layers that share another's have none there, and are the last.
    """
    cache = DynamicCache(config=model.config if kind in SELECTING else None)
    model(tokens(CONTEXT, seed=2), past_key_values=cache)
    assert len({id(cache.keys) for cache in forward.caches}) == len(cache.layers)
    for at, (ours, theirs) in enumerate(zip(forward.caches, cache.layers, strict=False)):
        keys, values = theirs.keys.to(dtype), theirs.values.to(dtype)
        if ours.index_keys is not None:
            ours.index_keys[:, :CONTEXT] = theirs.indexer_keys.to(dtype)
        if kind == "llama4_text" and forward._kind_inputs[forward._kind_by_layer[at]].rotation:
            keys = halves(keys)
        if ours.keys.shape[1] == 1 and keys.shape[-1] != ours.keys.shape[-1]:
            turned = halves(values) if kind in NEIGHBOURS else values
            ours.keys[:, :, :CONTEXT] = torch.cat((keys, turned), -1)
        else:
            ours.keys[:, :, :CONTEXT], ours.values[:, :, :CONTEXT] = keys, values


def halves(states: Tensor) -> Tensor:
    """Return states whose pairs are half a width apart, given such of neighbours."""
    return torch.cat((states[..., ::2], states[..., 1::2]), -1)


def every_expert(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys by which each token has all experts."""
    experts = ("num_local_experts", "n_routed_experts", "num_experts")
    count = next((config[key] for key in experts if key in config), None)
    if count is None:
        return {}
    chosen = "top_k_experts" if "top_k_experts" in config else "num_experts_per_tok"
    return {chosen: count, "n_group": 1, "topk_group": 1}


@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_all_positions(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    """N new positions over a cache of L have the logits of the last N of L + N, at every N.

    In 16 bits each token has all experts, and each query all positions: which of two with nearly
    one score is chosen is rounding.
    """
    config = CASES[case]
    if dtype == torch.bfloat16:
        config = config | every_expert(config)
    if config["model_type"] in SELECTING and dtype == torch.bfloat16:
        config = config | {"index_topk": CONTEXT + max(POSITIONS)}
    model = model_of(tmp_path, config, dtype)
    weights = GivenWeights(in_our_order(config["model_type"], model.state_dict()), dtype)
    forward = make_forward(tmp_path, config, weights=weights, dtype=dtype)
    fill(config["model_type"], forward, model, dtype)
    for n in POSITIONS:
        everything = torch.cat((tokens(CONTEXT, seed=2), tokens(n)), 1)
        difference = error(forward.forward(tokens(n)), model(everything).logits[:, -n:])
        assert difference < BARS[dtype]


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_names_of_transformers(tmp_path: Path, case: str) -> None:
    """A forward asks for each weight of transformers' model once; a tied head is the embedding."""
    config = CASES[case]
    theirs = model_of(tmp_path, config, torch.float32).state_dict()
    names = []

    class Asked(GivenWeights):
        def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
            names.append(name)
            return super().__call__(name, shape)

    weights = in_our_order(config["model_type"], theirs)
    make_forward(tmp_path, config, weights=Asked(weights, torch.float32))
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    assert sorted(names) == sorted(set(theirs) - tied)


def test_the_text_of_a_model_of_several_parts_is_run(tmp_path: Path) -> None:
    """Kimi K2.5's text is run by the family that its file names, DeepSeek's third version."""
    text = document("kimi_k2")
    path = write(tmp_path, {"model_type": "kimi_k25", "text_config": text}, "whole.json")
    alone = write(tmp_path, document("deepseek_v3"), "alone.json")
    parts = text | {"model_type": "deepseek_v3"}
    inner = write(tmp_path, {"model_type": "kimi_k25", "text_config": parts}, "inner.json")
    assert read_details(path) == read_details(inner) == read_details(alone)
