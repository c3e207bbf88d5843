"""Quantisation: what each method's section says, and what is refused of it."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.stored.quantisation import read_quantised
from nearfree.decoders.stored.quantised import Quantised
from nearfree.errors import RefusedError

from decoders.quantised import (
    AWQ,
    BLOCK,
    BNB,
    CHANNEL,
    EIGHT,
    FOUR,
    FP8,
    GPTQ,
    INT4,
    LIST,
    MODELOPT,
    ROUND,
    TOKEN,
    compressed,
    group,
)


def read(section: dict[str, Any], plain: Dtype = "bfloat16") -> Quantised:
    """Return the quantisation of a section."""
    return read_quantised(Keys(Path("config.json"), section), plain)


@pytest.mark.parametrize(
    ("section", "weights", "enters", "bits"),
    [
        (FP8, "float8", "float8", 8),
        ({**FP8, "activation_scheme": "static", "ignored_layers": None}, "float8", "float8", 8),
        ({**FP8, "kv_cache_scheme": "static"}, "float8", "float8", 8),
        (BLOCK, "float8_block", "float8_block", 8 + 32 / 128**2),
        ({**BLOCK, "weight_block_size": [1, 64]}, "float8_block", "float8_block", 8.5),
        ({"quant_method": "fbgemm_fp8", LIST: None}, "float8", "float8", 8),
        ({"quant_method": "mxfp4"}, "mxfp4", "bfloat16", 4.25),
        (AWQ, "int4", "bfloat16", 4 + 20 / 128),
        ({**AWQ, "zero_point": False}, "int4", "bfloat16", 4.125),
        (GPTQ, "int4", "bfloat16", 4.125),
        ({**GPTQ, "bits": 8, "group_size": 32}, "int8", "bfloat16", 8.5),
        ({**GPTQ, "group_size": -1}, "int4", "bfloat16", 4),
        ({**GPTQ, "sym": False}, "int4", "bfloat16", 4 + 20 / 128),
        (ROUND, "int4", "bfloat16", 4.125),
        ({**ROUND, "packing_format": "auto_round:auto_awq"}, "int4", "bfloat16", 4.125),
        ({**ROUND, "bits": 8, "sym": False, "group_size": 32}, "int8", "bfloat16", 8 + 24 / 32),
        (
            {**ROUND, "block_name_to_quantize": ["model.language_model.layers"]},
            "int4",
            "bfloat16",
            4.125,
        ),
        (MODELOPT, "nvfp4", "nvfp4", 4.5),
        ({**MODELOPT, "quant_algo": "MXFP8"}, "mxfp8", "mxfp8", 8.25),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, "float8", "float8", 8),
        ({"quant_algo": "FP8_PB_WO"}, "float8_block", "float8_block", 8 + 32 / 128**2),
        ({"quant_algo": "FP8_BLOCK_SCALES"}, "float8_block", "float8_block", 8 + 32 / 128**2),
        ({"quant_algo": "W4A16_AWQ", "group_size": 64}, "int4", "bfloat16", 4.25),
        ({**MODELOPT, "quant_algo": "W4A16_NVFP4"}, "nvfp4", "bfloat16", 4.5),
        ({**MODELOPT, "quant_algo": "W4A8_AWQ", "group_size": 128}, "int4", "float8", 4.125),
        ({**MODELOPT, "config_groups": {"a": group(FOUR, FOUR)}}, "nvfp4", "nvfp4", 4.5),
        (compressed(group(CHANNEL, TOKEN)), "float8", "float8", 8),
        (compressed(group(EIGHT)), "float8", "bfloat16", 8),
        (
            compressed(group({**EIGHT, "block_structure": [128, 128]}, TOKEN)),
            "float8_block",
            "float8_block",
            8 + 32 / 128**2,
        ),
        (compressed(group(INT4)), "int4", "bfloat16", 4.125),
        (compressed(group({**INT4, "symmetric": False})), "int4", "bfloat16", 4 + 20 / 128),
        (compressed(group({**INT4, "scale_dtype": "torch.float32"})), "int4", "bfloat16", 4.25),
        (
            compressed(group({**CHANNEL, "type": "int"}, {**TOKEN, "type": "int"})),
            "int8",
            "int8",
            8,
        ),
        (compressed(group(FOUR, {**FOUR, "dynamic": "local"})), "nvfp4", "nvfp4", 4.5),
        (compressed(group(FOUR)), "nvfp4", "bfloat16", 4.5),
        (compressed(group({**FOUR, "group_size": 32})), "mxfp4", "bfloat16", 4.25),
    ],
)
def test_each_method_has_its_scheme(
    section: dict[str, Any], weights: str, enters: str, bits: float
) -> None:
    """A weight takes its bits and its part of scales and zero points; plain numbers may enter."""
    quantised = read(section)
    scheme = quantised.others or quantised.routed
    assert scheme is not None
    assert not quantised.refusals
    assert (scheme.weights, scheme.activations) == (weights, enters)
    assert scheme.bits == pytest.approx(bits)


@pytest.mark.parametrize(
    ("scheme", "cache_format"),
    [
        ({"type": "float", "num_bits": 8}, "float8"),
        ({"type": "int", "num_bits": 8}, "int8"),
        ({"type": "float", "num_bits": 4}, "nvfp4"),
        ("FP8", "float8"),
        ("int8", "int8"),
        ("NVFP4", "nvfp4"),
        ("none", None),
    ],
)
def test_a_cache_s_scheme_is_a_name_or_numbers(scheme: Any, cache_format: str | None) -> None:
    """It is what the cache holds, whatever the weights are in; what caches do not hold is named."""
    assert read({**compressed(group(CHANNEL, TOKEN)), "kv_cache_scheme": scheme}).kv == cache_format
    four_bits = {"type": "int", "num_bits": 4}
    with pytest.raises(RefusedError, match="no format of a cache"):
        read({**compressed(group(CHANNEL, TOKEN)), "kv_cache_scheme": four_bits})


def test_groups_of_one_scheme_are_one() -> None:
    """Two groups that say the same of all products agree; two that differ are refused."""
    quantised = read(compressed(group(CHANNEL, TOKEN), group(CHANNEL, TOKEN)))
    assert quantised.others == read(compressed(group(CHANNEL, TOKEN))).others
    with pytest.raises(RefusedError, match="gives Linear two schemes"):
        read(compressed(group(CHANNEL, TOKEN), group(INT4)))
    with pytest.raises(RefusedError, match=r"config_groups .*has no groups"):
        read(compressed())


def test_engines_differ_on_the_head_where_all_products_are_meant() -> None:
    """The head is among all `Linear` by compressed-tensors alone, and by name where it is named."""
    assert read(compressed(group(CHANNEL, TOKEN))).head is None
    assert read(compressed(group(CHANNEL, TOKEN, targets=["re:.*q_proj"]))).head is False


@pytest.mark.parametrize(
    ("section", "method", "static"),
    [
        ({**FP8, "activation_scheme": "static"}, "fp8", True),
        ({**FP8, "activation_scheme": "dynamic"}, "fp8", False),
        ({"quant_algo": "FP8"}, "modelopt", True),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "modelopt", False),
        ({"quant_algo": "NVFP4"}, "modelopt", None),
        (compressed(group(CHANNEL, {**TOKEN, "dynamic": False})), "compressed-tensors", True),
        (compressed(group(CHANNEL, {**TOKEN, "dynamic": True})), "compressed-tensors", False),
        (compressed(group(EIGHT)), "compressed-tensors", False),
        (AWQ, "awq", None),
    ],
)
def test_whether_scales_of_what_enters_are_stored(
    *, section: dict[str, Any], method: str, static: bool | None
) -> None:
    """They are where a file says static, or does not say dynamic; weights alone have none."""
    quantised = read(section)
    assert (quantised.method, quantised.static) == (method, static)


def test_plain_numbers_enter_weight_only_products() -> None:
    """What enters a product with weights alone quantised is the file's dtype."""
    scheme = read(AWQ, "float16").others
    assert scheme is not None
    assert scheme.activations == "float16"


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (BNB, "must be true, or load_in_8bit"),
        ({**BNB, "load_in_4bit": True, "load_in_8bit": True}, "and not both"),
        ({**BNB, "load_in_4bit": True, "bnb_4bit_quant_type": "nf3"}, "is none of nf4, fp4"),
        ({**BNB, "load_in_8bit": True, "llm_int8_has_fp16_weight": True}, "not understood"),
        ({"quant_method": "quark"}, "not read"),
        ({"quant_method": "torchao"}, "not read"),
        ({"quant_method": "exl2"}, "not known"),
        ({}, "quant_method is missing"),
        ({**FP8, "fmt": "e5m2"}, "is none of e4m3"),
        ({**FP8, "scale_fmt": "int"}, "is none of ue8m0"),
        ({**FP8, "moe_quant_algo": "FP6"}, "is none of NVFP4"),
        ({**FP8, "moe_quant_algo": "NVFP4", "quant_algo": "FP8"}, "differs from quant_algo"),
        ({**FP8, "quantized_layers": {"a": {}}}, "needs moe_quant_algo"),
        ({**BLOCK, "weight_block_size": [128]}, "no pair"),
        ({**BLOCK, "weight_block_size": [0, 128]}, "no pair"),
        ({**FP8, "ignored_layers": ["a"], LIST: ["b"]}, "differs from"),
        ({**FP8, "store_dtype": "mxfp4"}, "store_dtype 'mxfp4' is not understood"),
        ({**AWQ, "bits": 8}, "is none of 4"),
        ({**AWQ, "group_size": 0}, "no size of a group"),
        ({**AWQ, "group_size": -2}, "whole number from -1"),
        ({**AWQ, "zero_point": None}, "zero_point is missing"),
        ({**GPTQ, "bits": 3}, "is none of 4, 8"),
        ({**GPTQ, "dynamic": {"-:.*attn.*": {}, "+:.*": {"bits": 8}}}, "rules of their own"),
        ({**GPTQ, "dynamic": {".*": {"bits": 8}}}, "rules of their own"),
        ({**GPTQ, "dynamic": {"-:.*(?=x)": {}}}, "1 entries that are not understood"),
        ({**GPTQ, "dynamic": ["-:.*"]}, "dynamic [...] is no object"),
        ({**GPTQ, "modules_in_block_to_quantize": [["a"]]}, "rules of their own"),
        ({**ROUND, "bits": 2}, "is none of 4, 8"),
        ({**ROUND, "packing_format": "auto_round"}, "is none of auto_round:auto_gptq"),
        ({**ROUND, "data_type": "mx_fp"}, "is none of int"),
        ({**ROUND, "act_bits": 8}, "quantises activations"),
        ({**ROUND, "super_bits": 4}, "super_bits 4 is not understood"),
        ({**ROUND, "quant_lm_head": True}, "quant_lm_head True is not understood"),
        ({**GPTQ, "act_dynamic": True}, "act_dynamic True is not understood"),
        ({**ROUND, "block_name_to_quantize": "model.layers.0"}, "decoder's layers as a whole"),
        ({**ROUND, "to_quant_block_names": ["model.visual"]}, "decoder's layers as a whole"),
        ({**ROUND, "extra_config": {"a": {"bits": 8}}}, "rules of their own"),
        ({**ROUND, "extra_config": {"a": {"group_size": 32}}}, "rules of their own"),
        ({**ROUND, "extra_config": {"a": {"sym": False}}}, "rules of their own"),
        ({**ROUND, "extra_config": {"a(?=b)": {"bits": 16}}}, "1 entries that are not understood"),
        ({**MODELOPT, "quant_algo": "FP6"}, "is none of FP8"),
        ({**MODELOPT, "group_size": 32}, "is not the 16 of NVFP4"),
        ({**MODELOPT, "quant_algo": "W4A16_AWQ"}, "group_size is missing"),
        ({**MODELOPT, "ignore": ["a"], "exclude_modules": ["b"]}, "differs from"),
        ({**MODELOPT, "config_groups": {"a": group(CHANNEL, TOKEN)}}, "differs from quant_algo"),
        ({**MODELOPT, "kv_cache_quant_algo": "FP6"}, "is none of FP8"),
        ({**MODELOPT, "quant_algo": "MIXED_PRECISION"}, "names no matrices"),
        ({**MODELOPT, "quantized_layers": {"a": {"quant_algo": "FP8"}}}, "one quant_algo for all"),
        (compressed(), "has no groups"),
        (compressed(group(None)), "weights.type is missing"),
        (compressed(group(CHANNEL, TOKEN, targets=[])), "names no matrices"),
        (compressed(group({**EIGHT, "num_bits": 5})), "5 of type 'float'"),
        (compressed(group({**FOUR, "group_size": 64})), "in groups of 64"),
        (compressed(group({**INT4, "group_size": 0})), "no size of a group"),
        (compressed(group({**CHANNEL, "strategy": "odd"})), "is none of tensor"),
        (compressed(group({**CHANNEL, "dynamic": True})), "anew in each forward"),
        (compressed(group({**CHANNEL, "symmetric": False})), "gives zero points to float8"),
        (compressed(group({**INT4, "scale_dtype": "torch.odd"})), "is none of torch.uint8"),
        (compressed(group(CHANNEL, TOKEN), group(INT4)), "gives Linear two schemes"),
        (compressed(group(CHANNEL, TOKEN), format="marlin-24"), "is none of naive-quantized"),
        (compressed(group(INT4), kv_cache_scheme={**EIGHT, "num_bits": 6}), "no format of a cache"),
        (compressed(group(INT4), sparsity_config={"a": 1}), "changes what is stored"),
    ],
)
def test_an_unknown_value_is_refused(section: dict[str, Any], reason: str) -> None:
    """A method, a value or a key that is not known is refused, and the refusal says why."""
    with pytest.raises(RefusedError) as error:
        read(section)
    assert reason in str(error.value)


def test_single_matrices_of_auto_round_are_unquantised() -> None:
    """Entries of 16 bits name them, exactly or by an expression; the head is quantised by name."""
    entries = {
        "model.layers.0.mlp.gate": {"bits": 16, "data_type": "fp"},
        ".*shared_expert_gate$": {"bits": 16},
        "q_proj.*": {"bits": 32},
        "model.layers.1.mlp.up_proj": {"bits": 4},
    }
    quantised = read({**ROUND, "extra_config": entries})
    ignored = quantised.ignored
    assert ignored.covers("model.layers.0.mlp.gate.weight")
    assert not ignored.covers("model.layers.1.mlp.gate")
    assert not ignored.covers("model.layers.0.mlp.gate_proj")
    assert ignored.covers("model.layers.7.mlp.shared_expert_gate")
    assert ignored.covers("model.layers.3.self_attn.q_proj")
    assert not ignored.covers("model.layers.1.mlp.up_proj")
    assert quantised.head is False
    assert read({**ROUND, "extra_config": {"lm_head": {"bits": 4}}}).head is True
    assert read({**ROUND, "extra_config": {"lm_head": {"bits": 16}}}).head is False


def test_mixed_algorithms_are_those_of_layers() -> None:
    """Groups that enter other numbers into the same weights are not what engines read."""
    section = {
        **MODELOPT,
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"a": {"quant_algo": "W4A16_NVFP4"}},
        "config_groups": {"a": group(FOUR, FOUR)},
    }
    quantised = read(section)
    assert not quantised.refusals
    ((_, stored),) = quantised.named
    assert (stored.weights, stored.activations) == ("nvfp4", "bfloat16")
    two_inputs = {**section, "config_groups": {"a": group(CHANNEL, TOKEN)}}
    with pytest.raises(RefusedError, match="differs from quant_algo and quantized_layers"):
        read(two_inputs)


@pytest.mark.parametrize(
    ("section", "weights", "reason"),
    [
        ({**FP8, "activation_scheme": "other"}, "float8", "is none of dynamic, static"),
        ({**BLOCK, "activation_scheme": "static"}, "float8_block", "beside weight_block_size"),
        (compressed(group({**CHANNEL, "type": "int"}, TOKEN)), "int8", "no int8 is multiplied by"),
        (compressed(group(INT4, {**TOKEN, "num_bits": 6})), "int4", "is not understood"),
        (compressed(group(INT4, output_activations=TOKEN)), "int4", "output_activations"),
        (
            {**MODELOPT, "quant_algo": "W4A16_NVFP4", "config_groups": {"a": group(FOUR, FOUR)}},
            "nvfp4",
            "has other activations than",
        ),
        ({**BNB, "load_in_8bit": True}, "int8", "'bitsandbytes' dequantises its matrices before"),
    ],
)
def test_weights_are_known_whose_products_are_not(
    section: dict[str, Any], weights: str, reason: str
) -> None:
    """What is said of activations alone and not understood is beside what is stored."""
    quantised = read(section)
    assert quantised.others is not None
    assert quantised.others.weights == weights
    assert reason in " ".join(map(str, quantised.refusals))


@pytest.mark.parametrize(
    ("changes", "bits"),
    [
        ({"load_in_8bit": True}, 8),
        ({"_load_in_4bit": True, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4 + (8 + 32 / 256) / 64),
    ],
)
def test_bitsandbytes_stores_scales_of_scales(changes: dict[str, Any], bits: float) -> None:
    """NF4 has a float32 for 64 weights, which double quantisation makes one of 8 bits."""
    quantised = read({**BNB, **changes})
    assert quantised.others is not None
    assert quantised.others.bits == bits
    assert quantised.head is False
    assert read({**BNB, **changes, "llm_int8_skip_modules": ["a"]}).head is None


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        (
            {**BLOCK, "fmt": "odd", "weight_block_size": [0], "odd": 1, LIST: ["re:["]},
            {"fmt", "weight_block_size", "odd", LIST},
        ),
        (
            {**AWQ, "bits": 5, "zero_point": None, "group_size": 0, "lm_head": 1},
            {"bits", "zero_point", "group_size", "lm_head"},
        ),
        ({**GPTQ, "bits": 5, "sym": None, "group_size": None}, {"bits", "sym", "group_size"}),
        (
            compressed(
                group({**FOUR, "num_bits": 5, "scale_dtype": "odd"}, format="odd", targets=[])
            ),
            {
                f"config_groups.group_0.{key}"
                for key in ("weights.num_bits", "weights.scale_dtype", "format", "targets")
            },
        ),
        (
            {**MODELOPT, "quant_algo": "FP6", "config_groups": {"a": group({})}},
            {"quant_algo", "config_groups.a.weights.type"},
        ),
        (
            {**BNB, "load_in_4bit": 1, "load_in_8bit": 2, "bnb_4bit_quant_type": "odd"},
            {"load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type"},
        ),
    ],
)
def test_all_reasons_are_reported_at_once(section: dict[str, Any], keys: set[str]) -> None:
    """A section with several faults is refused with each of them."""
    with pytest.raises(RefusedError) as error:
        read(section)
    assert {refusal.key for refusal in error.value.refusals} == keys


def test_algorithms_of_many_matrices_are_refused_once() -> None:
    """Thousands of matrices in one unknown algorithm are one reason."""
    layers = {f"layers.{number}.up": {"quant_algo": "FP6"} for number in range(5000)}
    with pytest.raises(RefusedError) as error:
        read({**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert len(error.value.refusals) == 1
