"""A made-up release of vllm: the shape of its functions, with numbers of its own."""

import json
from collections.abc import Mapping
from functools import cache

from nearfree.log.events import RuleExtracted, SourceFetched, SourceMember
from nearfree.sources.backends import vllm
from nearfree.sources.extraction import Extraction
from nearfree.sources.language.reading import mechanism_rule, read_rule
from nearfree.sources.tuned import index_tuned

FOLDER = "vllm/model_executor/layers/fused_moe"
PATH = f"{FOLDER}/fused_moe.py"
TEXT = """
import functools


def get_config_dtype_str(dtype, use_fp8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False):
    if use_fp8_w8a8:
        return "fp8_w8a8"
    if use_int4_w4a16:
        return "int4_w4a16"
    return None


def get_config_file_name(E, N, dtype, block_shape=None):
    device_name = current_platform.get_device_name().replace(" ", "_")
    suffix = f",dtype={dtype}" if dtype else ""
    return f"E={E},N={N},device_name={device_name}{suffix}.json"


@functools.lru_cache
def get_moe_configs(E, N, dtype, block_n=0, block_k=0):
    if vllm_is_batch_invariant():
        return None
    json_file_name = get_config_file_name(E, N, dtype, [block_n, block_k])
    return load(json_file_name)


def get_default_config(M, E, N, K, topk, dtype, block_shape=None):
    if dtype == "fp8_w8a8" and block_shape is not None:
        return {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": block_shape[0]}
    if M <= 40:
        size = 16
    else:
        size = 32 if M <= 300 else 128
    return {"BLOCK_SIZE_M": size, "BLOCK_SIZE_N": 64}


def try_get_optimal_moe_config(w1_shape, w2_shape, top_k, dtype, M, block_shape=None):
    override_config = get_config()
    if override_config:
        config = override_config
    else:
        E, _, N = w2_shape
        if dtype == "int4_w4a16":
            N = N * 2
        configs = get_moe_configs(E, N, dtype, 0, 0)
        config = configs or get_default_config(M, E, N, 1, top_k, dtype, block_shape)
    return config


def fused_experts_impl(hidden_states, w1, w2, topk_ids, global_num_experts, expert_map=None,
                       use_int8_w8a16=False, use_int4_w4a16=False, block_shape=None):
    num_tokens = hidden_states.size(0)
    CHUNK = 400
    M = min(num_tokens, CHUNK)
    config = functools.partial(try_get_optimal_moe_config, w1.size())(M)
    factor = 4
    top_k_num = topk_ids.size(1)
    naive_block_assignment = (
        expert_map is None and num_tokens * top_k_num * factor <= global_num_experts
    )
    if not naive_block_assignment:
        moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], global_num_experts)


class TritonExperts(Base):
    def apply(self, topk_ids, config):
        return moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], 1)
"""
TUNED = {
    f"{FOLDER}/configs/E=256,N=512,device_name=NVIDIA_H20.json": {
        "1": {"BLOCK_SIZE_M": 16},
        "64": {"BLOCK_SIZE_M": 64},
        "32": {"BLOCK_SIZE_M": 32},
    }
}


@cache
def rules_of(text: str, version: str) -> tuple[RuleExtracted, ...]:
    """Return the rules of such a release, which are read once: that takes seconds."""
    files = {PATH: text}
    return (
        *(read_rule(reading, "vllm", version) for reading in vllm.readings(files)),
        *(mechanism_rule(mechanism, "vllm", version) for mechanism in vllm.mechanisms(files)),
    )


def made_release(
    text: str = TEXT, tuned: Mapping[str, object] = TUNED, version: str = "1.0"
) -> Extraction:
    """Return what the made-up release says."""
    source = SourceFetched(
        package="vllm",
        version=version,
        artefact=f"vllm-{version}-py3-none-any.whl",
        artefact_sha256="a" * 64,
        verified="member",
        members=(SourceMember(path=PATH, sha256="b" * 64, size=len(text)),),
    )
    raw = {path: json.dumps(content, indent=4).encode() for path, content in tuned.items()}
    return Extraction(
        package="vllm",
        version=version,
        fetched=(source,),
        rules=rules_of(text, version),
        tuned=tuple(index_tuned("vllm", version, raw)),
    )
