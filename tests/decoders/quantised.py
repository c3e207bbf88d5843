"""Quantisation sections of config files, one for each method."""

from typing import Any

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCK = {**FP8, "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
ROUND: dict[str, Any] = {
    "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int",
    "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers",
    "autoround_version": "0.5.1", "iters": 200,
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
BNB = {"quant_method": "bitsandbytes"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
EIGHT = {"type": "float", "num_bits": 8}
TOKEN = {**EIGHT, "strategy": "token", "dynamic": True}
CHANNEL = {**EIGHT, "strategy": "channel"}
INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}
FOUR = {"type": "float", "num_bits": 4, "group_size": 16}
LIST = "modules_to_not_convert"


def group(weights: object, inputs: object = None, **others: Any) -> dict[str, Any]:
    """Return a group of compressed-tensors."""
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, **others}


def compressed(*groups: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return a section of compressed-tensors."""
    groups_by_name = {f"group_{number}": group_ for number, group_ in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": groups_by_name, **others}
