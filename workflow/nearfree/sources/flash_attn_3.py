"""FlashAttention-3, as xformers carries it: the rows of a query tile, splits and packed heads.

`call` says what a call passes on to the launch, and `tile` what the launch makes of it: the rows
of a tile (kBlockM), whether the heads of a group share one, and whether keys are split.
"""

import math
from collections.abc import Mapping
from typing import Any

from nearfree.errors import EvidenceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.cpp import Meaning
from nearfree.sources.cpp_program import cpp_program
from nearfree.sources.cpp_source import CppFiles
#from nearfree.sources.flash_attn_grid import packed_grid
from nearfree.sources.launch import Answered, answered, facts, tiles_of
from nearfree.sources.mechanism import Mechanism
from nearfree.sources.reading import Reading
from nearfree.sources.rule import Rule

PACKAGE = "xformers"
WANTED = (
    r"third_party/flash-attention/hopper/"
    r"(tile_size|heuristics|static_switch|flash_fwd_launch_template)\.h"
    r"|third_party/flash-attention/hopper/flash_api\.cpp"
)
PASSED = {
    "arch": "params_arch",
    "d": "params_d",
    "dv": "params_dv",
    "is_causal": "params_is_causal",
    "is_local": "params_is_local",
    "num_splits": "params_num_splits",
    "paged": "bool(params_page_table)",
    "pagedkv_tma": "params_pagedkv_tma",
    "pack_gqa": "params_pack_gqa",
    "varlen": "bool(params_cu_seqlens_q or params_cu_seqlens_k or params_seqused_k)",
}
"""What a launch is given, and the fields that hold it."""
# A call without window, chunks, cap, rotation, appended keys, left padding, other value
# dimensions, or a choice of splits or packing.
CALL = {
    "is_causal": "causal",
    "window_size_left": "-1",
    "window_size_right": "-1",
    "attention_chunk": "0",
    "softcap": "0.0",
    "num_splits": "0",
    "sm_margin": "0",
}
CALL_LEAVES = {
    r"cu_seqlens_q_\.has_value\(\)": "ragged",
    r"cu_seqlens_k_\.has_value\(\)": "(ragged and not paged)",
    r"seqused_k_\.has_value\(\)": "used",
    r"page_table_\.has_value\(\)": "paged",
    r"\w+_\.has_value\(\)": "False",
    r"\w+\.data_ptr(<int>)?\(\)|opaque\('\w+\.value\(\)\.data_ptr\(\)'\)": "True",
    r"cu_seqlens_[qk]\.size\(0\)": "batch + 1",
    r"sizes\[0\]": "batch",
    r"sizes\[1\]|max_seqlen_q_\.value\(\)": "positions",
    r"max_seqlen_k_\.value\(\)": "context",
    r"q\.size\(-2\)": "heads",
    r"[qv]\.size\(-1\)": "head_dim",
    r"k\.size\(-2\)": "kv_heads",
    r"k\.size\(0\)": "(batch * context)",
    r"page_table\.size\(0\)": "batch",
    r"k\.size\(1\)": "(page_size if paged else context)",
    r"page_table\.size\(1\)": "quotient(context + page_size - 1, page_size)",
    # Neither of the types that the source asks for by name: half precision.
    r"q\.(dtype|scalar_type)\(\)": "'half'",
    r"opaque\('((?:at|torch)::[\w:]+)'\)": r"'\1'",
    r"opaque\('at::cuda::getCurrentDeviceProperties\(\)->major'\)": "cc_major",
    r"opaque\('at::cuda::getCurrentDeviceProperties\(\)->minor'\)": "cc_minor",
    r"opaque\('at::cuda::getCurrentDeviceProperties\(\)->multiProcessorCount'\)": "sms",
}
TILE_LEAVES = {f"params_{name}": name for name in PASSED} | {
    "params_page_table": "paged",
    "params_cu_seqlens_q": "varlen",
    "params_(cu_seqlens_k|seqused_q|seqused_k|leftpad_k|qv_ptr|knew_ptr|is_e4m3|is_bf16)": "False",
    "params_softcap": "0.0",
    "params_v_dim_stride": "1",
    "params_seqlen_q": "positions",
    "params_h": "heads",
    "params_h_k": "kv_heads",
    r"sizeof\(.*\)": "2",
    r"opaque\('cute::is_same_v<\w+, cutlass::float_e\dm\d_t>'\)": "False",
}
DENSE = [*range(1, 10), *(step + past for step in range(16, 545, 16) for past in (0, 1))]
APIS = {"dense": (False, False), "kvcache": (False, True), "varlen": (True, False)}
"""Whether lengths are ragged, and whether the used keys are counted for each request."""
ANY_BLOCK = math.lcm(*range(1, 33)) * 8
"""A page size that every block of keys divides, to ask whether the page size matters."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read the rules of one release.

    Raises
    ------
    SourceError
        The release does not carry FlashAttention-3 in the known form.
    """
    parsed = CppFiles(files)
    for name in ("tile_size_fwd_sm90", "tile_size_fwd_sm8x", "num_splits_heuristic"):
        parsed.locate(name)
    return [call_rule(parsed), tile_rule(parsed)]


def call_rule(files: CppFiles) -> Reading:
    """Return how to read what a call passes on: splits, paging and packing included."""
    program, root = cpp_program(
        files,
        "mha_fwd",
        leaves=CALL_LEAVES,
        meaning=Meaning(
            answers={"run_mha_fwd": tuple(PASSED.values())},
            records=frozenset({"params"}),
            harmless=frozenset({"CHECK_SHAPE", "CHECK_DEVICE", "CHECK_CONTIGUOUS"}),
        ),
        constants=CALL,
    )
    return Reading(
        rule="call",
        program=program,
        root=root,
        axis="positions",
        contexts=contexts(),
        whole=False,
        dense=DENSE,
    )


def contexts() -> list[Mapping[str, Any]]:
    """Return the calls and devices at which the call's rule is tried."""
    shapes = [
        (1, 32, 32, 128, 2048, 132, 90),
        (1, 32, 8, 128, 512, 132, 90),
        (4, 32, 8, 64, 4096, 78, 90),
        (2, 16, 4, 256, 1024, 108, 80),
    ]
    ways = [
        (True, False, False, False),
        (False, False, True, False),
        (True, True, False, False),
        (True, False, True, True),
        (True, True, False, True),
    ]
    return [
        {"batch": b, "heads": h, "kv_heads": k, "head_dim": d, "context": length, "sms": sms}
        | {"cc_major": sm // 10, "cc_minor": sm % 10, "page_size": 128 if causal else 16}
        | {"causal": causal, "ragged": ragged, "used": used, "paged": paged}
        for b, h, k, d, length, sms, sm in shapes
        for causal, ragged, used, paged in ways
    ]


def tile_rule(files: CppFiles) -> Reading:
    """Return how to read rows, packing and splitting: from the launch down to the grid."""
    program, root = cpp_program(
        files,
        "run_mha_fwd",
        leaves=TILE_LEAVES,
        meaning=Meaning(
            answers={"get_grid_shape": ("kBlockM", "PackGQA", "Split")},
            tails=frozenset({"run_mha_fwd_constexpr", "run_mha_fwd_", "run_flash_fwd"}),
            harmless=frozenset({"prepare_varlen_num_blocks"}),
        ),
        constants={"params": "None", "stream": "None", "T_out": "None"},
    )
    return Reading(
        rule="tile",
        program=program,
        root=root,
        axis="d",
        contexts=[
            {"arch": arch, "num_splits": splits, "paged": paged, "pagedkv_tma": tma}
            | {"pack_gqa": pack, "is_causal": causal, "is_local": False, "varlen": varlen}
            | {"dv": 0, "positions": 128, "heads": 32, "kv_heads": 8}
            for arch in (80, 86, 90)
            for splits, pack in ((1, False), (1, True), (2, False))
            for paged, tma in ((False, False), (True, False), (True, True))
            for causal, varlen in ((False, False), (True, True))
        ],
        whole=False,
        dense=range(8, 265, 8),
    )


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that make the tile matter to the kernel."""
    return [packed_grid(CppFiles(files), "run_flash_fwd", "grid")]


def tile(rules: Mapping[str, Rule], asked: AttentionQuery, positions: int) -> Tile:
    """Return how a call is tiled; packed heads share a tile, so a position takes several rows.

    Parameters
    ----------
    rules
        The release's rules, by name.
    asked
        The call and the device.
    positions
        Query positions of each request.

    Raises
    ------
    EvidenceError
        A fact that a rule asks for is missing, or the backend has no kernel for the call.
    """
    known = facts(asked, positions) | device_facts(asked.sm)
    ragged, used = APIS[asked.api]
    known |= {"ragged": ragged, "used": used or (ragged and asked.paged), "page_size": 1}
    call = _passed(rules, known)
    if _passed(rules, known | {"page_size": ANY_BLOCK})["pagedkv_tma"] and asked.paged:
        raise EvidenceError(
            f"{PACKAGE}: for {positions} positions the tile depends on the page size of the cache",
            remedy="Ask for fewer positions, or without paged",
        )
    return call  # type: ignore[return-value]
