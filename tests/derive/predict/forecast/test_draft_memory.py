"""Memory of drafters: a draft model, a head, and a model's own layer."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import SMALL, change, write
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import ELEMENT_BYTES, Dtype, Override, uniform
from nearfree.decoders.decoder import States
from nearfree.decoders.model_file import read_model_file
from nearfree.derive.memory import memory, needs
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.draft_memory import with_drafters

FIELDS: dict[str, Any] = {"platform": "h200", "attention": BackendRelease("flash_attn", "2.8.3")}


@given(gb=st.floats(1.0, 200.0), batch=st.integers(1, 64))
def test_what_drafts_is_held_beside_its_model(gb: float, batch: int) -> None:
    """Weights and caches of both count, activations and the engine's part once."""
    model = read_model_file(MODEL)
    taken = needs(model, model.precision)
    assert taken is not None
    alone = memory(taken, gb, batch=batch, context=512)
    both = alone.with_drafter(alone)
    assert both.drafter_bytes == alone.weights_bytes + alone.kv_bytes
    assert both.rank_bytes == alone.rank_bytes + both.drafter_bytes
    assert both.fits == (both.rank_bytes <= gb * 1e9)
    assert not (both.fits and not alone.fits)
    decoder = model.decoder
    assert decoder is not None
    deployment = Deployment(decoder=decoder, batch=batch, context=512, memory=alone, **FIELDS)
    (own,) = with_drafters([deployment], [], own=True)
    assert own.memory is not None
    share = both.drafter_bytes / decoder.layers
    assert own.memory.drafter_bytes == pytest.approx(share, abs=1)
    (by_model,) = with_drafters([deployment], [deployment], own=False)
    assert by_model.memory == both
    (unknown,) = with_drafters([deployment], [structs.replace(deployment, memory=None)], own=False)
    assert unknown == deployment


def test_an_own_layer_takes_memory_as_it_is_stored(tmp_path: Path) -> None:
    """An unquantised own layer has wider weights; it lies on the last stage."""
    path = write(tmp_path, change("qwen3", quantization_config=FP8))
    model = read_model_file(path)
    decoder, taken = model.decoder, needs(model, model.precision)
    assert decoder is not None
    assert taken is not None
    alone = memory(taken, 80.0, batch=4, context=512)
    deployment = Deployment(
        decoder=decoder, precision=model.precision, batch=4, context=512, memory=alone, **FIELDS
    )
    plain = structs.replace(deployment, drafts_plain=True)
    own, left = with_drafters([deployment, plain], [], own=True)
    assert own.memory is not None
    assert left.memory is not None
    wider = ELEMENT_BYTES["bfloat16"] / ELEMENT_BYTES["float8_block"]
    more = (wider - 1) * alone.weights_bytes / decoder.layers
    for of in ("drafter_bytes", "rank_bytes"):
        grown = getattr(left.memory, of) - getattr(own.memory, of)
        assert grown == pytest.approx(more, abs=2)
    parallel = Parallel(pp=2)
    parted = memory(taken, 80.0, parallel=parallel, batch=4, context=512)
    staged = structs.replace(deployment, memory=parted, parallel=parallel)
    (own,) = with_drafters([staged], [], own=True)
    assert own.memory is not None
    layer = parallel.pp * parted.persistent_bytes / decoder.layers
    assert own.memory.rank_bytes - parted.rank_bytes == pytest.approx(layer, abs=2)


@pytest.mark.parametrize(
    ("kind", "experts"),
    [
        ("ernie4_5_moe", "moe_num_experts"),
        ("step3p5", "moe_num_experts"),
        ("mimo_v2_flash", "n_routed_experts"),
    ],
)
def test_an_own_layer_with_a_dense_ffn_holds_no_experts(
    tmp_path: Path, kind: str, experts: str
) -> None:
    """The model's experts do not count for an own layer with a dense FFN."""
    estimates = []
    for many in (64, 512):
        folder = tmp_path / str(many)
        folder.mkdir()
        model = read_model_file(write(folder, change(kind, **{experts: many})))
        decoder, taken = model.decoder, needs(model, model.precision)
        assert decoder is not None
        assert taken is not None
        alone = memory(taken, 80.0, context=512)
        deployment = Deployment(decoder=decoder, context=512, memory=alone, **FIELDS)
        (own,) = with_drafters([deployment], [], own=True)
        assert own.memory is not None
        estimates.append((alone.weights_bytes, own.memory.drafter_bytes))
    (fewer, small), (more_of_all, large) = estimates
    assert more_of_all > 2 * fewer
    assert large - small < 0.02 * (more_of_all - fewer) / decoder.layers


@pytest.mark.parametrize(("kind", "grows"), [("deepseek_v4", False), ("deepseek_v3", True)])
def test_an_own_layer_caches_what_it_sees(tmp_path: Path, kind: str, *, grows: bool) -> None:
    """DeepSeek V4's own layer caches its window only."""
    model = read_model_file(write(tmp_path, SMALL[kind]))
    decoder, taken = model.decoder, needs(model, model.precision)
    assert decoder is not None
    assert taken is not None
    sizes = []
    for context in (4096, 65536):
        alone = memory(taken, 80.0, context=context)
        deployment = Deployment(decoder=decoder, context=context, memory=alone, **FIELDS)
        (own,) = with_drafters([deployment], [], own=True)
        assert own.memory is not None
        sizes.append(own.memory.drafter_bytes)
    assert (sizes[1] > sizes[0]) == grows


@pytest.mark.parametrize("kv", ["bfloat16", "float8"])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("deepseek_v32", {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}),
        ("deepseek_v4", {"head_dim": 512, "compress_ratios": [0] * 7}),
        ("minimax_m3_vl_text", {}),
    ],
)
@pytest.mark.parametrize("tp", [1, 4])
def test_an_own_layer_caches_as_a_layer_of_its_model(
    tmp_path: Path, kind: str, keys: Any, kv: Dtype, tp: int
) -> None:
    """So many bytes, scales and index keys with it, as its model's cache has more by such a layer.

    What a rank has whole counts on each, here as there.
    """
    model = read_model_file(write(tmp_path, change(kind, **keys)))
    precision = Override(kv=kv).apply(uniform("bfloat16"))
    decoder, taken = model.decoder, needs(model, precision)
    assert decoder is not None
    assert taken is not None
    options = {"batch": 3, "context": 500, "parallel": Parallel(tp=tp)}
    alone = memory(taken, 80.0, **options)
    one = structs.replace(taken, cache=tuple(
        structs.replace(cache_layer, layers=1) for cache_layer in taken.cache
    ))  # fmt: skip
    deployment = Deployment(
        decoder=decoder, precision=precision, memory=alone, **options, **FIELDS,
    )  # fmt: skip
    (own,) = with_drafters([deployment], [], own=True)
    (bare,) = with_drafters([structs.replace(deployment, batch=6)], [], own=True)
    assert own.memory is not None
    assert bare.memory is not None
    more = bare.memory.drafter_bytes - own.memory.drafter_bytes
    assert more == pytest.approx(memory(one, 80.0, **options).kv_bytes, abs=2)


@pytest.mark.parametrize(
    ("engine", "context", "head", "grows"),
    [
        ("vllm", 4096, True, True),
        ("vllm", 16, True, False),
        ("vllm", 4096, False, False),
        ("sglang", 4096, True, False),
    ],
)
def test_a_head_lets_vllm_cache_all_of_chunked_layers(
    tmp_path: Path, engine: str, context: int, *, head: bool, grows: bool
) -> None:
    """With a head vLLM caches chunked layers whole."""
    keys = {"attention_chunk_size": 32}
    model = read_model_file(write(tmp_path, change("llama4_text", **keys)))
    decoder, taken = model.decoder, needs(model, model.precision)
    assert decoder is not None
    assert taken is not None
    parallel = Parallel(tp=2, dp=2)
    alone = memory(taken, 80.0, batch=6, context=context, parallel=parallel)
    unwindowed = structs.replace(taken, cache=tuple(
        structs.replace(cache_layer, window=None) for cache_layer in taken.cache
    ))  # fmt: skip
    larger = memory(unwindowed, 80.0, batch=6, context=context, parallel=parallel)
    deployment = Deployment(
        decoder=decoder, batch=6, context=context, memory=alone, parallel=parallel,
        moe=BackendRelease(engine), **FIELDS,
    )  # fmt: skip
    states = {"states": States(width=decoder.d_model, layers=3)} if head else {}
    drafter = structs.replace(deployment, decoder=structs.replace(decoder, **states))
    (both,) = with_drafters([deployment], [drafter], own=False)
    assert both.memory is not None
    of = larger if grows else alone
    assert both.memory.kv_bytes == of.kv_bytes
    assert both.memory.rank_bytes == pytest.approx(of.rank_bytes + alone.persistent_bytes, abs=2)
    assert both.memory.peak_bytes == of.peak_bytes + both.memory.drafter_bytes
    assert (larger.kv_bytes > alone.kv_bytes) == (context > 32)
    unsized = structs.replace(drafter, memory=None)
    gb = (alone.rank_bytes + larger.rank_bytes) / 2e9
    tight = memory(taken, gb, batch=6, context=context, parallel=parallel)
    (memory_with_drafters,) = with_drafters(
        [structs.replace(deployment, memory=tight)], [unsized], own=False
    )
    assert memory_with_drafters.memory is not None
    assert memory_with_drafters.memory.rank_bytes == pytest.approx(of.rank_bytes, abs=2)
    assert memory_with_drafters.memory.fits == (memory_with_drafters.memory.rank_bytes <= gb * 1e9)
    assert memory_with_drafters.memory.fits or grows


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MODEL = Path(__file__).parents[4] / "config/models/qwen3_8b.json"
