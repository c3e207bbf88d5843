"""Tables of latent attention, indexers and layers: kernels, widths and formats of their rows."""

from typing import Any

import polars as pl
import pytest
from nearfree.core.setting import FIELDS, Setting
from nearfree.core.setting_check import check_setting
from nearfree.errors import SourceError
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.guarded_reader import _read_guarded
from nearfree.public.latent_tables import MODELS, TABLES, LatentModel, read_latents

from public.tables import ROOT, parquet

KERNEL: dict[str, Any] = {
    "version": "0.5.14", "device": "NVIDIA H200", "op_name": "mla_context",
    "kernel_source": "flash_attention", "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
    "num_heads": 16, "batch_size": 2, "isl": 128, "step": 0, "latency": 0.5,
}  # fmt: skip
LAYER = {**KERNEL, "model": "deepseek-ai/DeepSeek-V3.2", "gemm_type": "fp8_block", "step": 4096,
         "kernel_source": "any", "op_name": "dsa_context_module"}  # fmt: skip


def member(table: str, backend: str = "sglang") -> str:
    """Return the path of a table."""
    return f"{ROOT}data/h200_sxm/mla/{backend}/1/{table}.parquet"


def read(table: str, *rows: dict[str, Any], engine: str = "") -> pl.DataFrame:
    """Return the points of a table of an engine; no row may be left out."""
    path = member(table)
    if engine:
        *folders, _, release, name = path.split("/")
        path = "/".join((*folders, engine, release, name))
    latents = read_latents(path, parquet(list(rows)))
    assert latents.skipped == {}
    return latents.points


@pytest.mark.parametrize(
    ("kernel", "api"), [("flash_attention", "absorbed"), ("triton", "absorbed"),
                        ("trtllm_mla", "naive"), ("default", "naive")],
)  # fmt: skip
def test_a_context_kernel_is_absorbed_or_naive(kernel: str, api: str) -> None:
    """SGLang's kernels on Hopper and Ada are absorbed, all others naive."""
    (row,) = read("context_mla_perf", {**KERNEL, "kernel_source": kernel}).to_dicts()
    assert (row["module"], row["api"], row["heads"], row["n"], row["context"]) == (
        "mla", api, 16, 128, 0,
    )  # fmt: skip
    assert (row["latent"], row["rope_dim"], row["nope_dim"], row["value_dim"]) == (
        512,
        64,
        128,
        128,
    )


def test_a_generation_kernel_is_absorbed() -> None:
    """A generation kernel has one position over a cache in the cache's format."""
    given = {**KERNEL, "isl": 1, "step": 4095, "kv_cache_dtype": "fp8"}
    (row,) = read("generation_mla_perf", given).to_dicts()
    assert (row["api"], row["n"], row["context"], row["kv_dtype"]) == (
        "absorbed",
        1,
        4095,
        "float8",
    )


def test_a_layer_has_its_models_widths() -> None:
    """A rank's projections follow from the model's widths; the format is the products'."""
    (row,) = read("dsa_context_module_perf", LAYER).to_dicts()
    assert (row["dtype"], row["kv_dtype"]) == ("float8_block", "bfloat16")
    assert (row["d_model"], row["selected"], row["index_heads"], row["index_dim"]) == (
        7168, 2048, 64, 128,
    )  # fmt: skip
    attention = 1536 * (7168 + 16 * 192) + 7168 * 576 + 16 * 512 * 256 + 16 * 128 * 7168
    assert row["projected"] == attention + 1536 * 64 * 128 + 7168 * (128 + 64)


def test_a_shared_selection_needs_no_indexer() -> None:
    """A layer with a shared selection has no indexer and fewer projections."""
    shared = {**LAYER, "op_name": "dsa_context_module_skip_indexer"}
    with_indexer, skipped = (
        read("dsa_context_module_perf", row).to_dicts()[0] for row in (LAYER, shared)
    )
    assert skipped["index_heads"] is None
    assert skipped["selected"] == 2048
    assert skipped["projected"] < with_indexer["projected"]


def test_compressed_layers_say_what_an_entry_stands_for() -> None:
    """Entries of DeepSeek V4 stand for 4 selected positions, or for 128."""
    given = {**LAYER, "model": "sgl-project/DeepSeek-V4-Flash-FP8"}
    (picked,) = read("dsv4_csa_context_module_perf", given).to_dicts()
    (dense,) = read("dsv4_hca_context_module_perf", given).to_dicts()
    assert (picked["span"], picked["selected"], picked["index_heads"]) == (4, 512, 64)
    assert (dense["span"], dense["selected"], dense["index_heads"]) == (128, None, None)
    assert dense["projected"] < picked["projected"]


def test_blocks_of_keys_are_grouped_heads() -> None:
    """A rank with 8 of MiniMax M3's 64 heads has one of its 4 key-value heads."""
    given = {**LAYER, "model": "MiniMaxAI/MiniMax-M3", "num_heads": 8}
    (row,) = read("msa_context_module_perf", given).to_dicts()
    assert (row["kv_heads"], row["head_dim"], row["latent"], row["selected"]) == (
        1,
        128,
        None,
        2048,
    )


@pytest.mark.parametrize(("engine", "index_heads"), [("vllm", 1), ("sglang", 1), ("trtllm", 4)])
def test_index_heads_are_those_that_were_timed(engine: str, index_heads: int) -> None:
    """Two engines divide the heads of M3's indexer; the third times all of them."""
    given = {**LAYER, "model": "MiniMaxAI/MiniMax-M3", "num_heads": 8}
    (row,) = read("msa_context_module_perf", given, engine=engine).to_dicts()
    assert row["index_heads"] == index_heads
    assert row["projected"] == 6144 * (2 * 8 + 2 + index_heads + 1) * 128


def test_an_indexer_has_all_heads_on_each_rank() -> None:
    """An indexer has the model's heads on each rank; scores and selection are two calls."""
    given = {
        **LAYER,
        "model": "zai-org/GLM-5",
        "mla_dtype": "fp8_e4m3",
        "kv_cache_dtype": "fp8_e4m3",
    }
    (logits,) = read("glm5_mqa_logits_module_perf", given).to_dicts()
    (chosen,) = read("glm5_topk_module_perf", {**given, "score_mode": "flat"}).to_dicts()
    assert (logits["module"], logits["heads"], logits["dtype"], logits["kv_dtype"]) == (
        "indexer", 32, "float8", None,
    )  # fmt: skip
    assert (logits["api"], chosen["api"], chosen["kernel"]) == ("logits", "select", "any flat")


@pytest.mark.parametrize(
    ("table", "changes", "reason"),
    [("context_mla_perf", {"device": "AMD"}, "not a GPU of NVIDIA"),
     ("context_mla_perf", {"kv_cache_dtype": "x"}, "kv_cache_dtype x has no place in a setting"),
     ("context_mla_perf", {"mla_dtype": "fp8"}, "dtype fp8 has no place in a setting"),
     ("context_mla_perf", {"batch_size": 0}, "a size is not positive"),
     ("generation_mla_perf", {"isl": 2}, "several new positions in a generation table"),
     ("dsa_context_module_perf", {"model": "a/b"}, "no widths of the model a/b are known"),
     ("dsa_context_module_perf", {"gemm_type": "int4"}, "products int4 has no place in a setting")],
)  # fmt: skip
def test_rows_of_no_setting(table: str, changes: dict[str, Any], reason: str) -> None:
    """A row that is no complete setting is left out and counted by reason."""
    good = LAYER if "module" in table else {**KERNEL, "isl": 1}
    latents = read_latents(member(table), parquet([good, {**good, **changes}]))
    assert latents.skipped == {reason: 1}
    assert latents.points.height == 1


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_a_setting(table: str) -> None:
    """Each row gives a valid setting; a table without a needed column is refused."""
    name = {"dsv4": "deepseek-ai/DeepSeek-V4-Pro", "msa_": "MiniMaxAI/MiniMax-M3"}.get(table[:4])
    given = {**LAYER, "isl": 1, "score_mode": "flat", "model": name or LAYER["model"]}
    (row,) = read(table, given).to_dicts()
    fields = {field: row[field] for field in CURVE_FIELDS if row[field] is not None}
    setting = Setting(module=row["module"], backend="sglang", dtype=row["dtype"], **fields)
    check_setting(setting)
    wrong = [field for field in fields if setting.module not in FIELDS[field].modules]
    assert all(fields[field] == FIELDS[field].default for field in wrong)
    short = {field: value for field, value in given.items() if field != "num_heads"}
    with pytest.raises(SourceError, match="lacks the column num_heads") as error:
        read_latents(member(table), parquet([short]))
    refusal = error.value.what, error.value.remedy
    assert _read_guarded(member(table), parquet([short])) == refusal


def test_quantised_editions_have_their_models_shape() -> None:
    """GLM-5's files in few bits are layers of the same widths."""
    glm = [model for name, model in MODELS.items() if "GLM-5" in name]
    assert len({*glm}) == 1
    assert isinstance(glm[0], LatentModel)
