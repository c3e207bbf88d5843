"""What speaks against a schedule: what drafts, too little memory, a release without the option."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import SMALL, change, write
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.decoders.model_file import read_model_file
from nearfree.derive.memory import memory, needs
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.draft import beside_drafters
from nearfree.derive.schedule.doubts import drafter_doubts, release_doubts

ASKED: dict[str, Any] = {"platform": "h200", "attention": BackendRelease("flash_attn", "2.8.3")}


@pytest.mark.parametrize(
    ("kind", "changes", "doubts"),
    [
        ("qwen3", {}, 1),
        ("qwen3", {"num_nextn_predict_layers": 0}, 1),
        ("deepseek_v3", {"num_nextn_predict_layers": 1}, 0),
        ("qwen3_next", {}, 0),
    ],
)
def test_a_layer_of_its_own_is_in_the_file_or_the_type(
    tmp_path: Path, kind: str, changes: dict[str, Any], doubts: int
) -> None:
    """Where a model counts no layer for further tokens, its cost is said to be supposed."""
    model = read_model_file(write(tmp_path, change(kind, **changes)))
    found = list(drafter_doubts("vllm", model, None))
    assert len(found) == doubts
    assert all("names no layer of its own" in each for each in found)


def test_a_draft_model_has_the_model_s_vocabulary(tmp_path: Path) -> None:
    """One of another size is told with both, and that vLLM refuses it; one of the same is not."""
    model = read_model_file(write(tmp_path, SMALL["qwen3"]))
    assert list(drafter_doubts("vllm", model, model)) == []
    other = read_model_file(write(tmp_path, change("qwen3", vocab_size=640)))
    (refused,) = drafter_doubts("vllm", model, other)
    assert "640 tokens" in refused
    assert "vLLM refuses such a draft model" in refused
    *_, translated = drafter_doubts("sglang", model, other)
    assert "have to be translated" in translated


def test_sglang_runs_no_schedule_of_a_draft_model(tmp_path: Path) -> None:
    """Its adaptive steps are of EAGLE's algorithms alone, and a draft model has another."""
    model = read_model_file(write(tmp_path, SMALL["qwen3"]))
    (dropped,) = drafter_doubts("sglang", model, model)
    assert "drops the schedule of a draft model" in dropped
    assert "STANDALONE" in dropped


@given(gb=st.floats(1.0, 200.0), batch=st.integers(1, 64))
def test_what_drafts_is_held_beside_its_model(gb: float, batch: int) -> None:
    """Weights and cache of both count, activations and the engine's part once."""
    model = read_model_file(MODEL)
    taken = needs(model, model.precision)
    assert taken is not None
    alone = memory(taken, gb, batch=batch, context=512)
    both = alone.beside(alone)
    assert both.drafter_bytes == alone.weights_bytes + alone.kv_bytes
    assert both.rank_bytes == alone.rank_bytes + both.drafter_bytes
    assert both.fits == (both.rank_bytes <= gb * 1e9)
    assert not (both.fits and not alone.fits)
    decoder = model.decoder
    assert decoder is not None
    asked = Deployment(decoder=decoder, batch=batch, memory=alone, **ASKED)
    (own,) = beside_drafters([asked], [], own=True)
    assert own.memory is not None
    share = both.drafter_bytes / decoder.layers
    assert own.memory.drafter_bytes == pytest.approx(share, abs=1)
    (by_model,) = beside_drafters([asked], [asked], own=False)
    assert by_model.memory == both
    (unknown,) = beside_drafters([asked], [structs.replace(asked, memory=None)], own=False)
    assert unknown == asked


def test_an_own_layer_takes_memory_as_it_is_stored(tmp_path: Path) -> None:
    """One that is left plain has wider weights; with pipeline stages all of it lies on the last."""
    path = write(tmp_path, change("qwen3", quantization_config=FP8))
    model = read_model_file(path)
    decoder, taken = model.decoder, needs(model, model.precision)
    assert decoder is not None
    assert taken is not None
    alone = memory(taken, 80.0, batch=4, context=512)
    asked = Deployment(decoder=decoder, precision=model.precision, memory=alone, **ASKED)
    plain = structs.replace(asked, drafts_plain=True)
    own, left = beside_drafters([asked, plain], [], own=True)
    assert own.memory is not None
    assert left.memory is not None
    wider = ELEMENT_BYTES["bfloat16"] / ELEMENT_BYTES["float8_block"]
    more = (wider - 1) * alone.weights_bytes / decoder.layers
    for of in ("drafter_bytes", "rank_bytes"):
        grown = getattr(left.memory, of) - getattr(own.memory, of)
        assert grown == pytest.approx(more, abs=2)
    parallel = Parallel(pp=2)
    parted = memory(taken, 80.0, parallel=parallel, batch=4, context=512)
    staged = structs.replace(asked, memory=parted, parallel=parallel)
    (own,) = beside_drafters([staged], [], own=True)
    assert own.memory is not None
    layer = parallel.pp * parted.lasting / decoder.layers
    assert own.memory.rank_bytes - parted.rank_bytes == pytest.approx(layer, abs=2)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MODEL = Path(__file__).parents[3] / "config/models/qwen3_8b.json"


@pytest.mark.parametrize(
    ("engine", "moe", "doubted"),
    [
        ("vllm", BackendRelease("vllm", "0.20.2"), True),
        ("vllm", BackendRelease("vllm", "0.23.0"), True),
        ("vllm", BackendRelease("vllm", "0.24.0"), False),
        ("vllm", BackendRelease("vllm"), False),
        ("vllm", BackendRelease("sglang", "0.5.9"), False),
        ("sglang", BackendRelease("sglang", "0.5.10"), True),
        ("sglang", BackendRelease("sglang", "0.5.13"), False),
        ("llama.cpp", BackendRelease("vllm", "0.9.1"), False),
    ],
)
def test_a_release_that_reads_no_such_option_is_named(
    engine: str, moe: BackendRelease, *, doubted: bool
) -> None:
    """What is pasted into an older release than the first that reads it is said to be in vain."""
    found = list(release_doubts(engine, [moe, moe]))
    assert len(found) == doubted
    assert all(f"{moe} does not read this option" in each for each in found)
