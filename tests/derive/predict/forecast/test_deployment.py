"""A deployment on several GPUs: a rank's modules and their questions at each batch size."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from decoders.files import CONFIG, change, write
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.backends.public_kernels import BY_PUBLIC_NAME, TWINS
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype, Override, uniform
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.ranks.collectives import ATTENTION_SUM, COMBINE, DISPATCH, LOGITS, MOE_SUM
from nearfree.decoders.ranks.modules import ATTENTION, MOE
from nearfree.derive.predict.forecast.deployment import Deployment, Questions

SPARSE = read_decoder(CONFIG / "models" / "qwen3_30b_a3b.json")
FIELDS: dict[str, Any] = {
    "platform": "h200",
    "attention": BackendRelease("flash_attn", "2.8.3"),
    "moe": BackendRelease("vllm", "0.20.2"),
    "routing": "balanced",
}

CUTLASS = "vllm_fp8moe_flashinfer_cutlass_flashinferexperts"


def deployment(batch: int, moe: str = "vllm", **degrees: int) -> Deployment:
    """Return the model on some GPUs."""
    query = FIELDS | {"moe": BackendRelease(moe, "1")}
    return Deployment(decoder=SPARSE, batch=batch, parallel=Parallel(**degrees), **query)


@pytest.mark.parametrize(
    ("moe", "engine"), [("vllm", "vllm"), ("sglang", "sglang"), ("torch_padded", "vllm")]
)
def test_collectives_are_those_of_the_engine(moe: str, engine: str) -> None:
    """The experts' engine decides whose all-reduce runs, by default vLLM's."""
    roles = {use.role: use for use in deployment(1, moe, tp=2).uses()}
    assert roles[ATTENTION_SUM].setting.backend == engine
    assert roles[LOGITS].setting.backend == "nccl"
    assert MOE_SUM not in {use.role for use in deployment(1, moe).uses()}


@pytest.mark.parametrize(
    ("moe", "served", "api"),
    [("vllm", True, "varlen"), ("vllm", False, "kvcache"), ("sglang", True, "kvcache")],
)
def test_vllm_calls_attention_by_lengths(moe: str, api: str, *, served: bool) -> None:
    """VLLM's steps use the call with lengths, which does not split keys."""
    query = structs.replace(deployment(1, moe), served=served)
    apis = {use.setting.api for use in query.uses() if use.setting.module == "attention"}
    assert apis == {api}


def test_what_a_builder_chooses_is_said() -> None:
    """GPUs of no known machine are assumed to be in one, and answers say so."""
    many = structs.replace(deployment(1, tp=4), assembled=True)
    assert any("4 of h200 are taken to be in one machine" in caveat for caveat in many.caveats)
    assert not structs.replace(deployment(1), assembled=True).caveats
    assert not deployment(1, tp=4).caveats


@pytest.mark.parametrize(
    ("degrees", "direct", "message"),
    [
        ({"tp": 4}, 2, "what 4 GPUs send each other over PCIe is timed as where they share one"),
        ({"dp": 4}, 2, "what 4 GPUs send each other over PCIe is timed as where they share one"),
        ({"tp": 4}, 8, "what 4 GPUs send each other over PCIe is timed as where they reach each"),
        ({"tp": 2}, 2, "what 2 GPUs send each other over PCIe is timed as where they reach each"),
        ({"tp": 2}, 1, "what 2 GPUs send each other over PCIe is timed as where they share one"),
        ({"pp": 8}, 2, ""),
    ],
)
def test_which_paths_over_pcie_are_meant_is_said(
    degrees: dict[str, int], direct: int, message: str
) -> None:
    """Answers name the assumed paths over PCIe, since tables differ by factors."""
    query = deployment(1, **degrees)
    (*caveats,) = structs.replace(query, direct_gpus=direct).caveats
    assert [caveat.startswith(message) for caveat in caveats] == [True] * bool(message)
    assert all("`direct_gpus` of h200 in config/platforms.yaml" in caveat for caveat in caveats)
    assert not query.caveats


@pytest.mark.parametrize(
    ("moe", "dp", "message"), [("sglang", 2, 1), ("sglang", 1, 0), ("vllm", 2, 0)]
)
def test_what_is_gathered_for_cuts_over_all_ranks_is_said(moe: str, dp: int, message: int) -> None:
    """SGLang cuts what all groups share over all ranks, and its gathers for it are not counted."""
    caveats = deployment(2, moe, dp=dp).caveats
    assert sum("gathers the rows of all groups" in caveat for caveat in caveats) == message


@pytest.mark.parametrize(
    ("kind", "kernel", "version", "message"),
    [
        ("qwen3_vl_text", "fa3", "0.5.23", 1),
        ("qwen3_vl_text", "fa3", None, 1),
        ("qwen3_vl_text", "fa3", "0.5.14", 0),
        ("qwen3_vl_text", "trtllm_mha", "0.5.23", 0),
        ("nemotron_h", "trtllm_mha", "0.5.9", 1),
        ("nemotron_h", "trtllm_mha", "0.5.14", 1),
        ("nemotron_h", "trtllm_mha", "0.5.23", 0),
        ("granitemoehybrid", "trtllm_mha", "0.5.9", 0),
        ("granitemoehybrid", "trtllm_mha", "0.5.13", 1),
        ("qwen3", "fa3", "0.5.23", 0),
    ],
)
def test_a_model_that_decodes_by_a_kernel_without_curves_is_a_caveat(
    tmp_path: Path, kind: str, kernel: str, version: str | None, message: int
) -> None:
    """SGLang takes FlashInfer's for some, by release, where others' kernel is measured."""
    decoder = read_decoder(write(tmp_path, change(kind)))
    query = FIELDS | {"moe": BackendRelease("sglang", version), "decoder_kernel": kernel}
    caveats = Deployment(decoder=decoder, **query).caveats
    assert sum(f"T(1) of attention is of {kernel}" in caveat for caveat in caveats) == message


SHARED: dict[str, Any] = {
    "n_routed_experts": 256, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "fields", "message"),
    [
        ("deepseek_v3", {}, {}, 257),
        ("glm_moe_dsa", {}, {}, 257),
        ("glm4_moe", {"n_routed_experts": 160}, {}, 161),
        (
            "bailing_hybrid",
            {"n_routed_experts": ..., "n_shared_experts": ..., "num_shared_experts": 1},
            {},
            17,
        ),
        ("deepseek_v3", {"n_routed_experts": 128}, {}, 0),
        ("deepseek_v32", {}, {}, 0),
        ("deepseek_v3", {"n_shared_experts": 2}, {}, 0),
        ("deepseek_v3", {}, {"moe": BackendRelease("vllm", "0.33.0")}, 0),
        ("deepseek_v3", {}, {"parallel": Parallel(tp=2, ep=2)}, 0),
        ("deepseek_v3", {}, {"library": "sglang_flashinfer_trtllm_moe"}, 0),
    ],
)
def test_a_shared_expert_among_the_routed_ones_is_a_caveat(
    tmp_path: Path, kind: str, changes: dict[str, Any], fields: dict[str, Any], message: int
) -> None:
    """If SGLang runs the shared expert as a routed one, answers say so."""
    decoder = read_decoder(write(tmp_path, change(kind, **SHARED | changes)))
    every = FIELDS | {"moe": BackendRelease("sglang", "0.5.23"), "served": True} | fields
    deployment = Deployment(decoder=decoder, **every)
    assert deployment.fused == message
    assert any(
        f"by the blocks of {message} experts" in caveat for caveat in deployment.caveats
    ) is (message > 0)


@pytest.mark.parametrize(
    ("moe", "weights", "library", "sent"),
    [
        ("vllm==0.33.0", "float8_block", None, "float8"),
        ("vllm==0.33.0", "float8", None, "float8"),
        ("vllm==0.33.0", "nvfp4", None, "nvfp4"),
        ("vllm==0.33.0", "int4", None, "bfloat16"),
        ("vllm==0.33.0", "bfloat16", None, "bfloat16"),
        ("vllm==0.33.0", "float8_block", CUTLASS, "bfloat16"),
        ("vllm==0.33.0", "float8", CUTLASS, "float8"),
        ("vllm==0.14.0", "float8_block", None, "bfloat16"),
        ("sglang==0.5.23", "float8_block", None, "bfloat16"),
    ],
)
def test_rows_are_sent_as_an_engine_rounds_them(
    moe: str, weights: Dtype, library: str | None, sent: str
) -> None:
    """Since 0.19.0 vLLM quantises rows of experts before it sends them, except for one kernel."""
    query = FIELDS | {"moe": BackendRelease(*moe.split("==")), "library": library}
    precision = Override(weights=weights).apply(uniform("bfloat16"))
    deployment = Deployment(decoder=SPARSE, parallel=Parallel(dp=2), precision=precision, **query)
    dtypes = {use.role: use.setting.dtype for use in deployment.uses()}
    assert (dtypes[DISPATCH], dtypes[COMBINE]) == (sent, "bfloat16")


@given(batch=st.integers(1, 99), dp=st.sampled_from([1, 2, 4, 8]), tp=st.sampled_from([1, 2]))
def test_a_question_has_the_batch_of_its_group(batch: int, dp: int, tp: int) -> None:
    """Attention is asked for the largest group, experts for all requests."""
    questions = Questions([deployment(batch, dp=dp, tp=tp, ep=dp * tp)], [1, 2])
    places = dict(questions.uses.select("role", "asked").iter_rows())
    batches = questions.frame["batch"].to_list()
    group = -(-batch // dp)
    assert batches[places[ATTENTION]] == group
    assert batches[places[MOE]] == batch
    if dp > 1:
        assert batches[places[DISPATCH]] == batch
    if tp > 1:
        assert batches[places[ATTENTION_SUM]] == group


def test_a_kind_is_asked_about_once(tmp_path: Path) -> None:
    """The number of questions depends on the kinds of layers, not on their number."""

    def questions_of(layers: int) -> Questions:
        types = ["sliding_attention", "full_attention"] * (layers // 2)
        small = change("gpt_oss", num_hidden_layers=layers, layer_types=types)
        decoder = read_decoder(write(tmp_path, small))
        return Questions([Deployment(decoder=decoder, **FIELDS)], [1, 2])

    few, many = questions_of(6), questions_of(94)
    assert few.frame.height == many.frame.height
    kinds = many.uses.filter(pl.col("role").str.starts_with("attention, "))
    assert kinds["count"].to_list() == [47, 47]
    assert many.frame["window"].gather(kinds["asked"]).to_list() == [32, None]


@pytest.mark.parametrize(("context", "message"), [(40959, 0), (40960, 1), (65536, 1)])
def test_a_context_that_the_model_is_not_made_for_is_a_caveat(context: int, message: int) -> None:
    """A context beyond the model's positions is named."""
    longer = Deployment(decoder=SPARSE, context=context, positions=40960, **FIELDS)
    assert [f"{context:,} cached positions" in caveat for caveat in longer.caveats] == [
        True
    ] * message
    assert Deployment(decoder=SPARSE, context=context, **FIELDS).caveats == ()


def test_a_kernel_of_the_same_source_is_a_caveat() -> None:
    """If another engine's curves stand in for a kernel, answers name the engine."""
    (name, (_, kernel)), *_ = TWINS.items()
    (caveat,) = Deployment(decoder=SPARSE, library=name, **FIELDS).caveats
    assert kernel in caveat
    assert BY_PUBLIC_NAME[name] in caveat


@pytest.mark.parametrize(
    ("kind", "weights", "message"),
    [
        ("minimax_m3_vl_text", "mxfp8", True), ("deepseek_v4", "mxfp8", True),
        ("minimax_m3_vl_text", "bfloat16", False), ("llama", "mxfp8", False),
    ],
)  # fmt: skip
def test_a_format_that_another_stands_for_is_a_caveat(
    tmp_path: Path, kind: str, weights: Any, *, message: bool
) -> None:
    """Attention layers in mxfp8 use curves of block-wise float8, and answers say so."""
    decoder = read_decoder(write(tmp_path, change(kind)))
    precision = Override(weights=weights).apply(uniform("bfloat16"))
    deployment = Deployment(decoder=decoder, precision=precision, **FIELDS)
    assert any("timed as in float8_block" in caveat for caveat in deployment.caveats) is message


def test_an_engine_whose_graphs_are_not_read_has_some() -> None:
    """Answers of TensorRT-LLM say that its CUDA graphs are unknown."""
    for engine, served, expected in (("trtllm", True, 1), ("trtllm", False, 0), ("vllm", True, 0)):
        query = structs.replace(deployment(1, engine), served=served)
        assert (
            sum("trtllm runs decode steps in CUDA" in caveat for caveat in query.caveats)
            == expected
        )
