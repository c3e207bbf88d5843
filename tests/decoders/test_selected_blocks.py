"""Attention to blocks that an indexer selects (MiniMax M3): what files say, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import uniform
from nearfree.decoders.attention_kinds import Grouped, runnable_kinds
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import LAYER
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.modules import ATTENTION, layer_format, modules
from nearfree.decoders.weights import stored
from nearfree.errors import EvidenceError, RefusedError

from decoders.files import change, write

KIND, SECTION = "minimax_m3_vl_text", "sparse_attention_config"
GROUPED: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_dim": 16}
SELECTS = Grouped(layers=(1, 2, 3, 4, 5), selected=4 * 128, index_heads=2, index_dim=12, **GROUPED)


def read(folder: Path, **changes: Any) -> Decoder:
    """Return the decoder of the small file with some keys changed."""
    return read_decoder(write(folder, change(KIND, **changes)))


def section(**changes: Any) -> dict[str, Any]:
    """Return what the small file says of selected blocks, with some keys changed."""
    values = {**change(KIND)[SECTION], **changes}
    return {key: value for key, value in values.items() if value is not ...}


def test_layers_that_are_marked_select_blocks(tmp_path: Path) -> None:
    """The others attend to all positions, as do all where the section is off."""
    decoder = read(tmp_path)
    assert decoder.attention == (Grouped(layers=(0,), **GROUPED), SELECTS)
    assert decoder.in_blocks
    all_positions = Grouped(layers=tuple(range(6)), **GROUPED)
    without_selection = read(tmp_path, **{SECTION: section(use_sparse_attention=False)})
    assert without_selection.attention == (all_positions,)
    assert not without_selection.in_blocks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_output_gate": True}, "attention_output_gate .* is not read"),
        ({SECTION: section(sparse_block_size=64)}, "sparse_block_size 64 is not 128"),
        ({SECTION: section(sparse_score_type="mean")}, "sparse_score_type 'mean' is not max"),
        ({SECTION: section(sparse_num_index_heads=4)}, "4 is not num_key_value_heads 2"),
        ({SECTION: section(sparse_attention_freq=[1])}, "has 1 entries for 6 layers"),
        ({SECTION: section(sparse_disable_index_value=[0] * 6)}, "whose indexer has values"),
        ({SECTION: section(sparse_topk_blocks=...)}, "sparse_topk_blocks is missing"),
        ({SECTION: ...}, "sparse_attention_config is missing"),
        ({"n_shared_experts": 3}, "makes shared experts 72 wide"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """What engines take for granted of the section is asked of a file."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, **changes)


def test_all_reasons_are_given_at_once(tmp_path: Path) -> None:
    """A section with three faults is refused with all three."""
    faulty = section(sparse_block_size=64, sparse_score_type="mean", sparse_topk_blocks=0)
    with pytest.raises(RefusedError) as error:
        read(tmp_path, **{SECTION: faulty})
    assert {refusal.key.rpartition(".")[2] for refusal in error.value.refusals} >= {
        "sparse_block_size", "sparse_score_type", "sparse_topk_blocks",
    }  # fmt: skip


def test_a_layer_is_one_module_with_all_of_its_products(tmp_path: Path) -> None:
    """Its weights are those that are stored; the engine runs it whatever runs other attention."""
    decoder = read(tmp_path)
    stored_elements = sum(
        weight.inputs * weight.outputs
        for weight in stored(write(tmp_path, change(KIND))).weights
        if weight.kind == "attention" and weight.inputs > 1 and 1 in weight.layers
    )
    assert SELECTS.projected(64) == stored_elements
    uses = {
        use.role.partition(",")[0]: use
        for use in modules(
            decoder, batch=3, context=4096, attention=BackendRelease("flash_attn", "2.8.3"),
            moe=BackendRelease("vllm", "0.33.0"), routing="balanced", parallel=Parallel(tp=4),
        )
    }  # fmt: skip
    layer = uses[LAYER]
    assert (layer.count, layer.setting.backend, layer.backend_version) == (5, "vllm_mla", "0.33.0")
    assert (layer.setting.heads, layer.setting.kv_heads, layer.setting.index_heads) == (2, 1, 1)
    assert (layer.setting.selected, layer.setting.api, layer.setting.batch) == (512, "verify", 3)
    assert layer.setting.projected == 64 * (2 * 2 * 16 + 2 * 16 + 2 * 12)
    assert (uses[ATTENTION].count, uses[ATTENTION].setting.backend) == (1, "flash_attn")


def test_the_basis_of_curves_has_a_caveat(tmp_path: Path) -> None:
    """An answer says that rows stand for requests, and what is taken off."""
    (caveat,) = caveats(read(tmp_path))
    assert "less the index keys" in caveat


def test_mxfp8_is_timed_as_blocks_of_float8() -> None:
    """Both have as many bits; all other formats stay as they are."""
    assert layer_format(uniform("mxfp8")) == "float8_block"
    assert layer_format(uniform("bfloat16")) == "bfloat16"


def test_no_forward_of_it_runs_here(tmp_path: Path) -> None:
    """A measurement of the model's forward is refused, and what can be asked is said."""
    with pytest.raises(EvidenceError, match="selected blocks is predicted, not run"):
        runnable_kinds(read(tmp_path).attention)
