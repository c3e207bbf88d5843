"""Additional work of layers whose products have fewer than 16 bits."""

from typing import Any

import numpy as np
import pytest
from nearfree.derive.work_model.moe import (
    MOE_LIBRARY,
    moe_features,
    own_tile_latency_us,
    with_loads,
)
from nearfree.derive.work_model.quantised import token_tiles

from derive.questions import MOE
from derive.work_model.forms import H100, arrays, facts_of, start

ON_HOPPER = {**MOE, "backend": "trtllm", "kernel": "moe_torch_flow_cutlass", "platform": "h100"}
ON_BLACKWELL = {**ON_HOPPER, "kernel": "deepgemm", "platform": "b200"}
SIZES = ("tokens", "top_k", "d_model", "d_ff")


def features(question: dict[str, Any], dtype: str, *, triton: bool = False) -> dict[str, Any]:
    """Return the features of one layer at N = 8."""
    return moe_features(facts_of({**question, "dtype": dtype}), np.array([[8.0]]), triton=triton)


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("question", [ON_HOPPER, ON_BLACKWELL])
def test_16_bits_have_nothing_besides(question: dict[str, Any], triton: bool) -> None:  # noqa: FBT001
    """Layers in 16 bits have no additional work."""
    feature_values = features(question, "bfloat16", triton=triton)
    assert feature_values["pass_bytes"] == 0
    assert np.isnan(feature_values["tile_m"]).all()


@pytest.mark.parametrize("dtype", ["float8", "float8_block"])
def test_triton_quantises_tokens_and_what_enters_the_second_product(dtype: str) -> None:
    """Each input element is read and written once more, a byte each time."""
    feature_values = features({**MOE, "platform": "h100"}, dtype, triton=True)
    tokens, top_k, d_model, d_ff = (feature_values[name].item() for name in SIZES)
    entering = tokens * d_model + tokens * top_k * d_ff
    assert feature_values["pass_bytes"].item() == pytest.approx(2 * entering, rel=1e-3)


def test_block_scaled_layers_of_hopper_quantise_routed_rows() -> None:
    """TensorRT-LLM routes rows before it quantises them; other formats quantise as they write."""
    feature_values = features(ON_HOPPER, "float8_block")
    tokens, top_k, d_model, d_ff = (feature_values[name].item() for name in SIZES)
    entering = tokens * top_k * (d_model + d_ff)
    assert feature_values["pass_bytes"].item() == pytest.approx(2 * entering, rel=1e-3)
    assert features(ON_HOPPER, "float8")["pass_bytes"] == 0
    assert features(ON_BLACKWELL, "float8_block")["pass_bytes"] == 0


@pytest.mark.parametrize(
    ("tokens", "sms", "tile"),
    [(1, 132, 16), (17, 132, 24), (31, 132, 32), (32, 132, 64), (64, 132, 64), (65, 132, 128),
     (63, 78, 64), (40, 78, 40), (64, 78, 64), (65, 78, 128), (9, 78, 16)],
)  # fmt: skip
def test_the_tile_follows_the_tokens(tokens: float, sms: float, tile: float) -> None:
    """Operands are swapped below 32 tokens, on an H20 below 64."""
    given = (np.array([[float(count)]]) for count in (tokens, sms))
    assert token_tiles(*given, np.array([[True]])) == tile


def test_only_hopper_has_that_tile() -> None:
    """On other GPUs and in other formats the library chooses the tile."""
    assert features(ON_HOPPER, "float8_block")["tile_m"] == 16
    other = {**ON_HOPPER, "platform": "b200"}
    for question, dtype in ((other, "float8_block"), (ON_HOPPER, "float8")):
        assert np.isnan(features(question, dtype)["tile_m"]).all()


def test_a_tile_that_is_known_is_taken() -> None:
    """A known tile of 128 rows pads more than the best of several tiles."""
    layer = {"experts": 256, "top_k": 8, "skewed": 0, "d_model": 4096, "d_ff": 512, "matrices": 3}
    layer |= {"ep": 1, "local_experts": 256}
    values = start(MOE_LIBRARY)
    free, bound = (
        own_tile_latency_us(
            with_loads(arrays([64], **{**H100, **layer, "tile_m": tile})), values, "best_tile"
        )
        for tile in (float("nan"), 128.0)
    )
    assert bound > free
