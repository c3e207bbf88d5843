"""FlashAttention-2: what its three functions pass on to the launch, for a call without extras."""

from collections.abc import Mapping
from typing import Any

from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.cpp.translate import Meaning
from nearfree.sources.language.reading import Reading

PASSED = ("head_dim", "causal", "num_splits", "keep_probability", "rows", "force_split_kernel")
"""What a launch is given: the entries of these rules' answers, in order."""
MEANING = Meaning(
    answers={
        "run_mha_fwd": (
            "params_d",
            "params_is_causal",
            "params_num_splits",
            "params_p_dropout",
            "quotient(params_seqlen_q, positions)",
            2,
        )
    },
    records=frozenset({"params"}),
    harmless=frozenset({"CHECK_SHAPE", "CHECK_DEVICE", "CHECK_CONTIGUOUS"}),
)
SIZES = dict.fromkeys(("positions", "batch", "heads", "kv_heads", "head_dim", "context", "sms"), 1)
DENSE = [*range(1, 10), *(step + past for step in range(32, 545, 32) for past in (0, 1))]
"""Close enough that a change of the number of splits is found wherever a source has constants."""
FUNCTIONS = {"dense": "mha_fwd", "varlen": "mha_varlen_fwd", "kvcache": "mha_fwd_kvcache"}
# A call without dropout, window, cap, ALiBi, rotation, appended keys or a choice of splits: what
# a query does not speak of is not used.
CONSTANTS = {
    "is_causal": "causal",
    "p_dropout": "0.0",
    "softcap": "0.0",
    "window_size_left": "-1",
    "window_size_right": "-1",
    "num_splits": "0",
    "max_seqlen_q": "positions",
    "max_seqlen_k": "context",
    "return_softmax": "False",
    "zero_tensors": "False",
}
COMMON = {
    r"(block_table|page_table)_\.has_value\(\)": "paged",
    r"\w+_\.has_value\(\)": "False",
    r"get_num_sm\(.*\)|dprops_multiProcessorCount": "sms",
    r"get_compute_capability\(.*\)": "(cc_major, cc_minor)",
    r"dprops_major": "cc_major",
    r"dprops_minor": "cc_minor",
}
# A paged cache is taken as one page that holds the context: only their product is read.
LEAVES: dict[str, dict[str, str]] = {
    "dense": {
        r"sizes\[0\]": "batch",
        r"sizes\[1\]": "positions",
        r"sizes\[2\]": "heads",
        r"sizes\[3\]": "head_dim",
        r"k\.size\(1\)": "context",
        r"k\.size\(2\)": "kv_heads",
    },
    "varlen": {
        r"cu_seqlens_q\.numel\(\)": "batch + 1",
        r"sizes\[1\]": "heads",
        r"sizes\[2\]": "head_dim",
        r"k\.size\(1\)": "(context if paged else kv_heads)",
        r"k\.size\(2\)": "kv_heads",
    },
    "kvcache": {
        r"sizes\[0\]": "batch",
        r"sizes\[1\]": "positions",
        r"sizes\[2\]": "heads",
        r"sizes\[3\]": "head_dim",
        r"kcache\.size\(1\)": "context",
        r"kcache\.size\(2\)": "kv_heads",
        r"block_table\.size\(1\)": "1",
    },
}


def contexts(api: str) -> list[Mapping[str, Any]]:
    """Return the calls and devices at which a rule is tried."""
    shapes = [
        (1, 32, 32, 128, 2048, 108),
        (1, 32, 8, 128, 512, 132),
        (4, 32, 8, 64, 4096, 132),
        (8, 16, 4, 256, 512, 78),
        (2, 8, 8, 160, 128, 108),
    ]
    return [
        {"batch": b, "heads": h, "kv_heads": k, "head_dim": d, "context": length, "sms": sms}
        | {"causal": causal, "paged": paged, "cc_major": 8 if sms == 108 else 9, "cc_minor": 0}
        for b, h, k, d, length, sms in shapes
        for causal, paged in ((True, False), (False, api != "dense"))
    ]


def passed_on(files: CppFiles, api: str) -> Reading:
    """Return how to read what one function passes on."""
    program, root = cpp_program(
        files,
        FUNCTIONS[api],
        leaves=COMMON,
        own=LEAVES[api],
        meaning=MEANING,
        constants=CONSTANTS,
    )
    return Reading(
        rule=f"{api}_call",
        program=program,
        root=root,
        axis="positions",
        contexts=contexts(api),
        whole=False,
        dense=DENSE,
        least=SIZES,
    )
