"""FlashAttention-2: the rows of a query tile, and which kernel is launched.

`<api>_call` says what a call passes on to the launch, `path` which kernel that leads to, and
`tile` how many rows one of its tiles has (kBlockM).
"""

from collections.abc import Mapping
from typing import Any

from nearfree.errors import EvidenceError
from nearfree.hardware.platforms import shared_memory
from nearfree.sources.attention import Asked, AttentionQuery, Point, Tile
from nearfree.sources.backends.flash_attn_api import FUNCTIONS, PASSED, passed_on
from nearfree.sources.backends.flash_attn_grid import ceiling_grid, fixed_rows
from nearfree.sources.backends.launch import answered, facts, point_of, tiles_of
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.cpp.special import dispatch
from nearfree.sources.cpp.translate import Meaning
from nearfree.sources.language.reading import Mechanism, Reading
from nearfree.sources.language.rule import Rule

PACKAGE = "flash-attn"
WANTED = (
    r"csrc/flash_attn/(flash_api\.cpp"
    r"|src/(flash_fwd_launch_template\.h|static_switch\.h|flash_fwd_hdim\w+\.cu))"
)
STANDARD, SPLIT = "run_mha_fwd_", "run_mha_fwd_splitkv_dispatch"
LEAVES = {
    # Half and brain floats have the same tiles: `dispatch` checks it.
    "params_is_bf16": "True",
    "params_d": "head_dim",
    "params_is_causal": "causal",
    "params_num_splits": "num_splits",
    "params_p_dropout": "keep_probability",
    r"get_compute_capability\(.*\)": "(cc_major, cc_minor)",
    r"at.*getCurrentDeviceProperties\(\)": "None",
    "dprops_major": "cc_major",
    "dprops_minor": "cc_minor",
    r"device_attribute\('cudaDevAttrMaxSharedMemoryPerMultiprocessor'\)": "smem_per_sm",
    r"device_attribute\('cudaDevAttrMaxSharedMemoryPerBlockOptin'\)": "smem_per_block",
}
NOTHING = {"params": "None", "stream": "None", "elem_type": "None"}
DEVICES = (80, 86, 90)
DENSE = range(8, 265, 8)


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read the rules of one release.

    Raises
    ------
    SourceError
        The release has no function of a known name, or has it twice.
    """
    parsed = CppFiles(files)
    return [tile_rule(parsed), path_rule(parsed), *(passed_on(parsed, api) for api in FUNCTIONS)]


def tile_rule(files: CppFiles) -> Reading:
    """Return how to read kBlockM: from the launch down to the kernel's traits."""
    made, called = dispatch(files, STANDARD)
    program, root = cpp_program(
        files,
        "run_mha_fwd",
        leaves=LEAVES,
        meaning=Meaning(
            sinks={"run_flash_fwd": (0, 1), "run_flash_splitkv_fwd": (0, 1)},
            tails=frozenset({STANDARD, SPLIT, *called}),
        ),
        made={STANDARD: made},
        constants=NOTHING,
    )
    return Reading(
        rule="tile",
        program=program,
        root=root,
        axis="head_dim",
        contexts=[
            {"causal": causal, "num_splits": splits, "force_split_kernel": force}
            | {"keep_probability": keep}
            | device_facts(sm)
            for causal in (False, True)
            for splits, force in ((0, False), (2, False), (0, True))
            for keep in (1.0, 0.9)
            for sm in DEVICES
        ],
        whole=False,
        dense=DENSE,
    )


def path_rule(files: CppFiles) -> Reading:
    """Return how to read which kernel a launch leads to."""
    program, root = cpp_program(
        files,
        "run_mha_fwd",
        leaves=LEAVES,
        meaning=Meaning(answers={STANDARD: ("'standard'",), SPLIT: ("'split_kv'",)}),
        constants=NOTHING,
    )
    return Reading(
        rule="path",
        program=program,
        root=root,
        axis="num_splits",
        contexts=[
            {"force_split_kernel": force, "causal": False, "head_dim": head_dim}
            for force in (False, True)
            for head_dim in (64, 128)
        ],
        whole=False,
        dense=range(1, 9),
    )


def device_facts(sm: int | None) -> dict[str, Any]:
    """Return what the source asks of a device of some compute capability; None if unknown."""
    if sm is None:
        return dict.fromkeys(("cc_major", "cc_minor", "smem_per_sm", "smem_per_block"))
    memory = shared_memory(sm)
    return {
        "cc_major": sm // 10,
        "cc_minor": sm % 10,
        "smem_per_sm": memory.per_sm,
        "smem_per_block": memory.per_block,
    }


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that make the tile matter to the kernels."""
    parsed = CppFiles(files)
    return [
        ceiling_grid(parsed, "run_flash_fwd", "grid"),
        ceiling_grid(parsed, "run_flash_splitkv_fwd", "split_grid"),
        fixed_rows(parsed, SPLIT, "run_flash_splitkv_fwd", "split_tile"),
    ]


THEN = ("path", "tile")
"""The rules that are asked with what a call passes on."""


def asks(asked: AttentionQuery, point: Point) -> tuple[Asked, ...]:
    """Return the rules that read where a call is, and their facts; `THEN` go on from there."""
    return (Asked(f"{asked.api}_call", facts(asked, point) | device_facts(asked.sm)),)


def tile(rules: Mapping[str, Rule], asked: AttentionQuery, positions: int) -> Tile:
    """Return how a call is tiled.

    Parameters
    ----------
    rules
        The release's rules, by name.
    asked
        The call and the device; `context` is what the key cache holds room for.
    positions
        Query positions of each request.

    Raises
    ------
    EvidenceError
        A fact that a rule asks for is missing, or the backend has no kernel for the call.
    """
    ((name, known),) = asks(asked, point_of(asked, positions))
    call = answered(rules, name, known)
    if asked.paged and "paged" not in call.rule.inputs:
        raise EvidenceError(
            f"{call.rule.package} {call.rule.version} reads no page table in its {asked.api} call",
            remedy="Ask without paged, or for a later release",
        )
    passed = {**known, **dict(zip(PASSED, call.value, strict=True))}
    path, rows = answered(rules, "path", passed), answered(rules, "tile", passed)
    kernel, each = path.value[0], passed["rows"]
    return Tile(
        path=f"{kernel}_swapped" if each > 1 else kernel,
        tile=rows.value,
        rows_per_position=each,
        tiles=tiles_of(rows.value, positions * each),
        branches=(rows.branch, path.branch, call.branch),
    )
