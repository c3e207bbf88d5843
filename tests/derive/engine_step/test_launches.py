"""Host time outside of graphs: launches, and the part that no overlap hides."""

import pytest
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.decoders.state_kinds import Mamba2
from nearfree.derive.engine_step.form import LAYER_KERNELS
from nearfree.derive.engine_step.launches import (
    DRAFTING,
    draws_all,
    exposed_us,
    launch_count,
    launches_us,
)
from nearfree.derive.work_model.launches import LAUNCH_US

from derive.predict.forecast.pool import DENSE, SPARSE, deployment


def test_a_dense_layer_launches_its_products_attention_and_what_lies_between() -> None:
    """QKV, attention, output, two of the FFN, and five between; one LM head besides."""
    one = deployment(DENSE)
    layers = one.decoder.layers
    assert launch_count(one.uses(), layers) == layers * (5 + LAYER_KERNELS) + 1


def test_a_layer_of_experts_launches_more() -> None:
    """Router and six kernels of the experts take the place of two products."""
    one = deployment(SPARSE[0])
    layers = one.decoder.layers
    assert launch_count(one.uses(), layers) == layers * (3 + 1 + 6 + LAYER_KERNELS) + 1


@pytest.mark.parametrize(
    ("version", "later"),
    [("0.10.0", False), ("0.13.0", False), ("0.14.0", True), ("main (2025-07)", False),
     ("unknown (2026-01)", True), ("unknown (recipe)", True), (None, True)],
)  # fmt: skip
def test_overlap_by_release_or_month(version: str | None, later: bool) -> None:  # noqa: FBT001
    """The host shows in steps with drafts until vLLM overlaps them; unnamed ones are the newest."""
    wanted = 0.0 if later else DRAFTING["vllm"].exposed_us
    assert exposed_us(BackendRelease("vllm", version)) == wanted


def test_what_was_published_of_overlap() -> None:
    """Both pairs of rows were measured with one drafter and the same tokens a step."""
    assert pytest.approx(28140 - 27170) == DRAFTING["vllm"].exposed_us
    before, with_overlap = 2.99e6 / 246.80, 3.01e6 / 273.43
    assert pytest.approx(before - with_overlap, abs=1.0) == DRAFTING["sglang"].exposed_us


def test_graphs_hold_a_draft_in_sglang_and_in_vllm_s_second_runner() -> None:
    """Until then a head with a vocabulary of its own launches four more."""
    old, model = BackendRelease("vllm", "0.20.2"), deployment(SPARSE[0]).decoder
    assert launches_us(old, model, mapped=False) == 21 * LAUNCH_US
    assert launches_us(old, model, mapped=True) == 25 * LAUNCH_US
    for engine, version in (("vllm", "0.29.0"), ("sglang", "0.5.6"), ("sglang", None),
                            ("sglang", "unknown (2025-12)")):  # fmt: skip
        assert launches_us(BackendRelease(engine, version), model, mapped=True) == 0.0


def test_the_second_runner_ran_some_models_before_others() -> None:
    """Those without experts and states from 0.26.0 on, of those with experts a few."""
    dense, sparse = deployment(DENSE).decoder, deployment(SPARSE[0]).decoder
    listed = structs.replace(sparse, model_type="qwen2_moe")
    states = structs.replace(
        dense,
        kinds=(Mamba2(layers=(0,), heads=4, head_dim=16, groups=1, state_dim=16, conv=4),),
    )
    for version, held in (("0.24.0", ()), ("0.26.0", (dense, listed)), ("0.28.0", (dense, listed)),
                          ("0.29.0", (dense, listed, sparse, states))):  # fmt: skip
        for decoder in (dense, listed, sparse, states):
            taken = launches_us(BackendRelease("vllm", version), decoder, mapped=False)
            assert (taken == 0.0) == any(decoder is one for one in held)


def test_another_engine_has_no_host_time() -> None:
    """TensorRT-LLM's host is not counted, and it draws from one row a request."""
    other = BackendRelease("trtllm", "1.2.0")
    assert (
        launches_us(other, deployment(DENSE).decoder, mapped=True),
        exposed_us(other),
        draws_all(other),
    ) == (
        0.0,
        0.0,
        False,
    )
