"""Memory of caches: windows, heads, latents, indexers and compressed entries."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import SMALL, change, write
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from nearfree.core.parallel import Parallel
from nearfree.core.precision import ELEMENT_BYTES, Override, uniform
from nearfree.decoders.layouts.pieces import CacheLayer
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.ranks.engines import SGLANG, VLLM
from nearfree.derive.memory import (
    PAGE_POSITIONS,
    memory,
    needs,
)

from derive.needs import NEEDS


@given(st.integers(1, 10**6))
def test_windows_bound_a_cache(context: int) -> None:
    """A layer keeps whole pages of all positions, or of the last of its window."""
    full, windowed = 4 * 256 * 2.0, 4 * 256 * 2.0
    pages = -(-(context + 1) // PAGE_POSITIONS) * PAGE_POSITIONS
    held = full * pages + windowed * min(pages, 512)
    assert memory(NEEDS, None, context=context).kv_bytes == held


@pytest.mark.parametrize(
    ("kind", "windows"),
    [("gpt_oss", True), ("gemma4_text", True), ("gemma2", False), ("gemma3_text", False),
     ("olmo3", False), ("beam", True), ("muse_glimmer_text", True), ("spark2_5", True)],
)  # fmt: skip
def test_sglang_keeps_windows_of_some_models_alone(
    tmp_path: Path, kind: str, *, windows: bool
) -> None:
    """Of others its layers with a window cache all positions, as those without one do."""
    taken = needs(read_model_file(write(tmp_path, SMALL[kind])), None)
    assert taken is not None
    assert any(cache_layer.window for cache_layer in taken.cache)
    vllm, sglang = (
        memory(taken, None, engine=engine, context=1023).kv_bytes for engine in (VLLM, SGLANG)
    )
    assert (sglang == vllm) is windows
    elements = sum(cache_layer.layers * cache_layer.elements for cache_layer in taken.cache)
    assert windows or sglang == 1024 * elements * 2


def test_a_layer_s_heads_are_all_that_parts_its_cache() -> None:
    """With more GPUs than heads of keys each head is held several times."""
    two, eight = (memory(NEEDS, None, parallel=Parallel(tp=gpus)).kv_bytes for gpus in (2, 8))
    assert eight == 4 * two


def test_keys_of_an_indexer_are_whole_on_each_rank() -> None:
    """Keys of an indexer are in the model's element type, independent of the cache's."""
    index = CacheLayer(layers=3, elements=100, whole=True)
    with_index = structs.replace(
        NEEDS, cache=(*NEEDS.cache, index), cache_element=1.0, plain_element=2.0
    )
    without = structs.replace(NEEDS, cache_element=1.0, plain_element=2.0)
    for gpus in (1, 2, 8):
        options = {"parallel": Parallel(tp=gpus), "context": PAGE_POSITIONS - 1}
        more = (
            memory(with_index, None, **options).kv_bytes - memory(without, None, **options).kv_bytes
        )
        assert more == gpus * 3 * PAGE_POSITIONS * 100 * 2


@pytest.mark.parametrize("kv", ["bfloat16", "float8"])
def test_an_index_key_takes_as_much_whatever_the_cache_is_in(tmp_path: Path, kv: Any) -> None:
    """It has 128 bytes and a scale of four (DeepSeek V3.2), beside a latent in the cache's own."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    file = read_model_file(write(tmp_path, change("deepseek_v32", **sizes)))
    taken = needs(file, replace(uniform("bfloat16"), kv=kv))
    assert taken is not None
    estimate = memory(taken, None, context=PAGE_POSITIONS - 1).kv_bytes
    assert estimate == PAGE_POSITIONS * 6 * (576 * ELEMENT_BYTES[kv] + 132)


def test_a_record_that_is_larger_than_its_elements_is_said(tmp_path: Path) -> None:
    """FlashMLA keeps 656 bytes of a selected latent of DeepSeek V3.2 in float8, not 576."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    notes_by_case = {}
    for kind in ("deepseek_v32", "deepseek_v3"):
        file = read_model_file(write(tmp_path, change(kind, **sizes)))
        for kv in ("bfloat16", "float8"):
            taken = needs(file, Override(kv=kv).apply(uniform("bfloat16")))
            assert taken is not None
            notes_by_case[kind, kv] = [note for note in taken.notes if "latents in float8" in note]
    (note,) = notes_by_case.pop(("deepseek_v32", "float8"))
    assert "counts 576 bytes" in note
    assert note.endswith("keeps 656")
    assert not any(notes_by_case.values())


@pytest.mark.parametrize(("kv", "record"), [("float8", 584), ("bfloat16", 1024)])
def test_an_entry_in_float8_has_scales_and_a_part_in_16_bits(
    tmp_path: Path, kv: Any, record: int
) -> None:
    """Of 512 elements of DeepSeek V4 it takes 584 bytes, in a window and of several positions."""
    path = write(tmp_path, change("deepseek_v4", head_dim=512, index_head_dim=128))
    taken = needs(read_model_file(path), replace(uniform("bfloat16"), kv=kv))
    assert taken is not None
    estimate = memory(taken, None, context=127).kv_bytes - taken.state_bytes(VLLM, 1)
    assert estimate == 6 * 32 * record + 2 * 32 * (record + 132) + 2 * record


@pytest.mark.parametrize("tp", [1, 4])
def test_a_compressor_keeps_positions_that_are_no_entry_yet(tmp_path: Path, tp: int) -> None:
    """Each rank has 8 or 128 of them, as a state and a score in float32 whatever the cache is in.

    Entries of 4 positions overlap, so that a state is twice as wide, and so is an indexer's.
    """
    path = write(tmp_path, change("deepseek_v4", head_dim=512, index_head_dim=128))
    taken = needs(read_model_file(path), Override(kv="float8").apply(uniform("bfloat16")))
    assert taken is not None
    held = 2 * 8 * 2 * 2 * (512 + 128) + 2 * 128 * 2 * 512
    none = structs.replace(taken, cache=tuple(e for e in taken.cache if not e.state_elements))
    every, without = (memory(needs_, None, parallel=Parallel(tp=tp)) for needs_ in (taken, none))
    assert every.kv_bytes - without.kv_bytes == tp * 4 * held
    assert every.rank_bytes - without.rank_bytes == 4 * held


def test_what_has_a_type_of_its_own_is_not_in_the_cache_s() -> None:
    """Elements of 2 bytes stay so where the rest of the cache is in float8, which has more."""
    own = CacheLayer(layers=3, elements=100, dtype="bfloat16")
    plain = CacheLayer(layers=3, elements=100, more=7.0)
    for cached, more in ((1.0, 7), (2.0, 0)):
        of = structs.replace(NEEDS, cache_element=cached, cache=(own,))
        options = {"parallel": Parallel(tp=2), "context": PAGE_POSITIONS - 1}
        assert memory(of, None, **options).kv_bytes == 2 * 3 * PAGE_POSITIONS * 200
        of = structs.replace(of, cache=(plain,))
        expected = 2 * 3 * PAGE_POSITIONS * (100 * cached + more)
        assert memory(of, None, **options).kv_bytes == expected
