"""Memory: a deployment's bytes, whether they fit, and the largest batch that fits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nearfree
import pytest
from decoders.files import CONFIG, SMALL, change, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models.test_footprint import BIG, PROGRAM
from msgspec import structs
from msgspec.structs import replace
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Override, uniform
from nearfree.decoders.layouts.pieces import Kind
from nearfree.decoders.model_file import find_model_file, read_model_file
from nearfree.decoders.ranks.engines import SGLANG, VLLM, Engine
from nearfree.decoders.ranks.holding import Held, Holding, held
from nearfree.derive.memory import (
    COLLECTIVE_BYTES,
    ENGINE_BYTES,
    PAGE_POSITIONS,
    Memory,
    memory,
    needs,
    static_load,
)

from derive.needs import NEEDS

LLAMA: dict[str, Any] = {
    "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256,
    "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama_70b": {
        **LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "intermediate_size": 28672,
    },
    "llama_405b": {
        **LLAMA, "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
        "intermediate_size": 53248,
    },
    "deepseek_r1": {
        "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "vocab_size": 129280,
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8,
        "topk_group": 4, "tie_word_embeddings": False,
    },
    "gpt_oss_120b": {
        "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128,
        "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
    },
}  # fmt: skip
SHAPES["kimi_k2"] = {
    **SHAPES["deepseek_r1"], "vocab_size": 163840, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
"""Shapes as their publishers state them."""
H100, H200 = 80.0, 141.0


@pytest.mark.parametrize(
    ("model", "weights", "gpus", "fits"),
    [
        ("llama_70b", "bfloat16", (1, H100), False),
        ("llama_70b", "bfloat16", (4, H100), True),
        ("llama_70b", "float8", (1, H200), True),
        ("mixtral_8x7b", "bfloat16", (1, H100), False),
        ("mixtral_8x7b", "bfloat16", (1, H200), True),
        ("qwen3_30b_a3b", "bfloat16", (1, H100), True),
        ("llama_405b", "float8", (8, H100), True),
        ("llama_405b", "bfloat16", (8, H100), False),
        ("deepseek_r1", "float8_block", (8, H100), False),
        ("deepseek_r1", "float8_block", (8, H200), True),
        ("gpt_oss_120b", None, (1, H100), True),
        ("kimi_k2", "float8_block", (8, H200), True),
        ("kimi_k2", "float8_block", (8, H100), False),
    ],
)
def test_verdicts_follow_from_stored_sizes(
    tmp_path: Path,
    model: str,
    weights: Any,
    gpus: tuple[int, float],
    fits: bool,  # noqa: FBT001
) -> None:
    """Published models fit on the GPUs that hold their stored weights, and on no fewer."""
    if model in SHAPES:
        file = read_model_file(write(tmp_path, SHAPES[model]))
    else:
        file = find_model_file(CONFIG, model)
    assert file.precision is not None
    taken = needs(file, Override(weights=weights).apply(file.precision))
    assert taken is not None
    count, memory_gb = gpus
    estimate = memory(taken, memory_gb, parallel=Parallel(tp=count))
    assert estimate.fits is fits
    assert estimate.gpus_needed is not None
    assert (estimate.gpus_needed <= count) is fits


def test_a_small_largest_batch_is_given(tmp_path: Path) -> None:
    """A trillion weights leave room for few requests on eight GPUs: a finite number."""
    file = read_model_file(write(tmp_path, SHAPES["kimi_k2"]))
    taken = needs(file, Override(weights="float8_block").apply(uniform("bfloat16")))
    assert taken is not None
    estimate = memory(taken, H200, parallel=Parallel(tp=8), context=32768)
    assert estimate.fits
    assert estimate.largest_batch is not None
    assert 1 <= estimate.largest_batch < 100


def test_a_model_without_a_predicted_forward_has_a_memory(tmp_path: Path) -> None:
    """Memory is computed for models whose forward is refused, too."""
    shape = SHAPES["deepseek_r1"] | {"full_attention_interval": 4}
    file = read_model_file(write(tmp_path, shape))
    assert file.decoder is None
    assert [refusal.key for refusal in file.refusals]
    assert needs(file, None) is not None


SPREAD = st.builds(
    lambda tp, dp, part, pp: Parallel(tp=tp, dp=dp, ep=[1, tp, tp * dp][part], pp=pp),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2),
    st.integers(1, 4),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    kind=st.sampled_from(sorted(SMALL)),
    parallel=SPREAD,
    engine=st.sampled_from([VLLM, SGLANG]),
    weights=st.sampled_from([None, "float8", "int4", "nvfp4", "float32"]),
)
def test_all_ranks_together_hold_the_model(
    *, tmp_path: Path, kind: str, parallel: Parallel, engine: Engine, weights: Any
) -> None:
    """The weights of all ranks are the model's, apart from replicated ones.

    Norms and routers lie on all ranks of their stage, heads of keys beyond their number on
    several, all but experts once a dp group, and a tied embedding on two stages.
    """
    file = read_model_file(write(tmp_path, SMALL[kind]))
    assert file.precision is not None
    taken = needs(file, Override(weights=weights).apply(file.precision))
    assert taken is not None
    held = static_load(taken, parallel, engine)
    total_bytes = sum(weight.size_bytes for weight in taken.weights)
    alone = static_load(taken, replace(parallel, tp=1, dp=1, ep=1), engine)
    tied = not any(weight.kind == "lm_head" for weight in taken.weights)
    twice = sum(weight.size_bytes for weight in taken.weights if weight.kind == "embedding")
    assert alone.weights == pytest.approx(total_bytes + twice * (tied and parallel.pp > 1))
    assert held.weights >= alone.weights * (1 - 1e-9)
    assert held.parallel == parallel
    most = max(size for size, _ in held.stages)
    assert most * parallel.gpus >= held.weights * (1 - 1e-9)
    experts = [weight for weight in taken.weights if weight.kind == "experts"]
    holding = Holding(parallel, engine, taken.heads, taken.experts, taken.vocabulary)
    for expert in experts:
        share = holding.share(expert.how, expert.kind) * parallel.ranks
        assert holding.copies(expert.how, expert.kind) == 1 <= share + 1e-9
        assert taken.experts % parallel.ep or share == pytest.approx(1)


@pytest.mark.parametrize(("tp", "share"), [(1, 1), (2, 1 / 2), (4, 1 / 4), (8, 1 / 4)])
def test_key_heads_are_replicated_beyond_their_number(tp: int, share: float) -> None:
    """Of four heads of keys a rank holds one at least, and so of the cache of each request."""
    file = find_model_file(CONFIG, "qwen3_30b_a3b")
    taken = needs(file, None)
    assert taken is not None
    estimate, one = (
        memory(taken, None, parallel=Parallel(tp=degree)).kv_bytes for degree in (tp, 1)
    )
    assert estimate == one * share * tp


@pytest.mark.parametrize(
    ("kind", "changes", "elements"),
    [
        ("nemotron-nas", {}, 0),  # two heads of keys, which its file says layer by layer
        ("gemma4_text", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}, 3 * 2 * 32),
        ("deepseek_v3", {}, 6 * (12 + 4)),
    ],
)
def test_each_layer_s_cache_is_parted_by_its_own_heads(
    tmp_path: Path, kind: str, changes: dict[str, Any], elements: int
) -> None:
    """Two ranks cache twice what layers with one head of keys, or a latent, keep of a position."""
    taken = needs(read_model_file(write(tmp_path, change(kind, **changes))), None)
    assert taken is not None
    one, two = (
        memory(taken, None, parallel=Parallel(tp=tp), context=PAGE_POSITIONS - 1).kv_bytes
        for tp in (1, 2)
    )
    assert two - one == PAGE_POSITIONS * elements * 2


@pytest.mark.parametrize(
    ("name", "kind", "how"),
    [
        ("block_sparse_moe.routed_expert_down_proj", "ffn", "whole"),
        ("block_sparse_moe.routed_expert_up_proj", "ffn", "whole"),
        ("mixer.fc1_latent_proj", "ffn", "whole"),
        ("self_attn.f_a_proj", "state", "whole"),
        ("self_attn.g_a_proj", "state", "whole"),
        ("self_attn.g_b_proj", "state", "cut"),
        ("mlp.down_proj", "ffn", "cut"),
    ],
)
def test_latents_and_narrow_rows_are_whole_on_each_rank(name: str, kind: Kind, how: Held) -> None:
    """What leads into a latent of experts or out of it is not cut, nor are narrow rows of gates."""
    assert held(f"model.layers.*.{name}", kind) == how


def test_layers_of_stages_are_those_of_their_weights() -> None:
    """Stages part layers, the embedding lies on the first and the LM head on the last."""
    taken = needs(find_model_file(CONFIG, "qwen3_8b"), None)
    assert taken is not None
    ends = {weight.kind: weight.size_bytes for weight in taken.weights if not weight.layers}
    layers = sum(weight.size_bytes for weight in taken.weights if weight.layers)
    (first, _), (last, share) = static_load(taken, Parallel(pp=2)).stages
    assert first == pytest.approx(layers / 2 + ends["embedding"])
    assert last == pytest.approx(layers / 2 + ends["lm_head"] + ends["norm"])
    assert share == 0.5


def test_groups_hold_the_caches_of_their_requests() -> None:
    """With dp a rank has the caches of its group's requests, all ranks those of all."""
    taken = needs(find_model_file(CONFIG, "qwen3_8b"), None)
    assert taken is not None
    one, four = (
        memory(taken, 80.0, parallel=Parallel(dp=dp), batch=64, context=1024) for dp in (1, 4)
    )
    assert four.kv_bytes == one.kv_bytes
    assert one.rank_bytes - four.rank_bytes > 0.7 * one.kv_bytes
    assert four.weights_bytes == 4 * one.weights_bytes


@given(st.integers(1, 64), st.integers(1, 300), st.integers(1, 10**6), st.floats(1.0, 500.0))
def test_the_largest_are_the_last_that_fit(
    gpus: int, batch: int, context: int, memory_gb: float
) -> None:
    """The largest batch and context fit and one more does not; more GPUs than needed fit."""

    def ask(**options: int) -> Memory:
        return memory(
            NEEDS,
            memory_gb,
            parallel=Parallel(tp=options.pop("gpus", gpus)),
            **({"batch": batch, "context": context} | options),
        )

    question_rows = ask()
    assert question_rows.peak_bytes == (
        question_rows.weights_bytes
        + question_rows.kv_bytes
        + question_rows.activations_bytes
        + question_rows.engine_bytes
    )
    assert question_rows.capacity_bytes is not None
    assert question_rows.fits is (question_rows.rank_bytes <= question_rows.capacity_bytes / gpus)
    assert question_rows.peak_bytes <= gpus * (question_rows.rank_bytes + 1)
    for name in ("batch", "context"):
        largest = getattr(question_rows, f"largest_{name}")
        if largest is not None:
            assert not ask(**{name: largest + 1}).fits
            assert not largest or ask(**{name: largest}).fits
    if question_rows.gpus_needed:
        assert ask(gpus=question_rows.gpus_needed).fits
        assert question_rows.gpus_needed == 1 or not ask(gpus=question_rows.gpus_needed // 2).fits


@pytest.mark.parametrize(("tp", "width"), [(1, 2944), (2, 1536), (8, 384)])
def test_experts_that_are_filled_up_take_more(tmp_path: Path, tp: int, width: int) -> None:
    """Rows become a multiple of 256 elements, a rank's part of an expert one of 128."""
    taken = needs(read_model_file(write(tmp_path, SHAPES["gpt_oss_120b"])), None)
    assert taken is not None
    stored = sum(weight.size_bytes for weight in taken.weights if weight.kind == "experts")
    plain, filled = (
        static_load(taken, Parallel(tp=tp), padded=gated_).weights for gated_ in (False, True)
    )
    assert filled - plain == pytest.approx(stored * (3072 * width * tp / 2880**2 - 1))


@pytest.mark.parametrize(("ep", "copies"), [(4, 4), (1, 2)])
def test_shared_experts_are_whole_where_rows_are_parted(
    tmp_path: Path, ep: int, copies: int
) -> None:
    """With ep each rank of vLLM's has them, without each of two groups of two ranks."""
    taken = needs(read_model_file(write(tmp_path, SMALL["deepseek_v3"])), None)
    assert taken is not None
    (shared,) = (weight for weight in taken.weights if weight.kind == "shared_experts")
    without = structs.replace(
        taken, weights=tuple(weight for weight in taken.weights if weight is not shared)
    )
    both, rest = (static_load(needs_, Parallel(tp=2, dp=2, ep=ep)) for needs_ in (taken, without))
    assert both.weights - rest.weights == pytest.approx(copies * shared.size_bytes)
    (one, _), (other, _) = both.stages[0], rest.stages[0]
    assert one - other == pytest.approx(copies * shared.size_bytes / 4)


@pytest.mark.parametrize(("batch", "dp", "tp"), [(3, 1, 1), (9, 2, 4), (20000, 2, 1)])
def test_a_forward_makes_hidden_states_a_layer_s_widest_and_logits(
    batch: int, dp: int, tp: int
) -> None:
    """Of a prompt's tokens, or of more requests: 4 hidden states, and a rank's part of a layer's.

    Logits, in the element type and in float32, are those of the last position of each request.
    """
    file = find_model_file(CONFIG, "qwen3_8b")
    taken = needs(file, uniform("bfloat16"))
    assert taken is not None
    requests = -(-batch // dp)
    token = 4 * 4096 * 2 + file.widest * 2 / tp
    made = max(requests, 8192) * token + requests * 151936 * (4 + 2)
    estimate = memory(taken, None, parallel=Parallel(tp=tp, dp=dp), batch=batch)
    assert estimate.activations_bytes == tp * dp * round(made)


def test_an_unknown_memory_gives_no_verdict() -> None:
    """Where a platform's memory is not known, only the deployment's bytes are given."""
    estimate = memory(NEEDS, None)
    assert (estimate.fits, estimate.capacity_bytes, estimate.gpus_needed) == (None, None, None)
    assert estimate.peak_bytes > 30e9


def test_the_engine_has_its_allowance_on_each_gpu() -> None:
    """An engine's own memory counts once for each GPU."""
    estimate = memory(NEEDS, None, parallel=Parallel(tp=3))
    assert estimate.engine_bytes == 3 * (ENGINE_BYTES + COLLECTIVE_BYTES)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell the peak")
@pytest.mark.parametrize("most_of", ["kv_cache", pytest.param("experts", marks=pytest.mark.slow)])
def test_the_peak_agrees_with_a_measured_one(tmp_path: Path, most_of: str) -> None:
    """A forward's measured peak on this CPU is within a tenth of the computed one.

    Without an engine, and with a decode step of 8 positions; freed heap is returned.
    """
    options = dict(BIG[most_of])
    document = json.loads((CONFIG / "models" / f"{options.pop('model')}.json").read_text())
    batch, context, _ = (options.pop(name) for name in ("batch", "context", "most"))
    path = write(tmp_path, document | options, "config.json")
    taken = needs(read_model_file(path), None)
    assert taken is not None
    alone = structs.replace(taken, engine=0, prompt_tokens=0)
    estimate = memory(alone, None, batch=batch, context=context)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), json.dumps([batch, context, 1])],
        capture_output=True, text=True, check=True,
        env=os.environ | {
            "PYTHONPATH": str(Path(nearfree.__file__).parents[1]),
            "MALLOC_MMAP_THRESHOLD_": "131072",
        },
    )  # fmt: skip
    assert int(done.stdout) == pytest.approx(estimate.peak_bytes, rel=0.1)
