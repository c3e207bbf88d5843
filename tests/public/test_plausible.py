"""The check against hardware: possible latencies pass, those in another unit do not."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.modules.attention import attention_work
from nearfree.core.modules.dense_ffn import dense_work
from nearfree.core.modules.moe_ffn import moe_work, rank_pairs
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.routing_names import Controlled
from nearfree.core.setting import Module, Setting
from nearfree.log.events import LatencyImported
from nearfree.public.curves import curves_of
from nearfree.public.plausible import too_fast, unit_too_small, with_slowness

PLATFORMS = Config(Path(__file__).parents[2] / "config").platforms
SIZES = st.sampled_from([64, 512, 1000, 4096, 16384])
GPUS = st.sampled_from(["a100", "h100", "h20", "l40s"])
NS = (1, 2, 16, 300, 4096)


def judged(setting: Setting, latency_us: tuple[float, ...], platform: str = "h100") -> pl.DataFrame:
    """Return the points of a curve over NS with their ratio to the fastest time."""
    curve = LatencyImported(
        source="s",
        member="m",
        member_sha256="0" * 64,
        platform=platform,
        setting=setting,
        backend_version="1",
        n=NS[: len(latency_us)],
        latency_us=latency_us,
    )
    frames = curves_of([(curve, "id")])
    points = frames.points.drop("context").join(frames.settings, on="curve")
    return with_slowness(points, PLATFORMS)


def is_fast(judgement: pl.DataFrame) -> bool:
    """Return whether any point is too fast."""
    return bool(judgement.select(too_fast(pl.col("slowness")).any()).item())


def is_slow(judgement: pl.DataFrame) -> bool:
    """Return whether the curve looks like nanoseconds."""
    return bool(judgement.select(unit_too_small(pl.col("slowness_cold"))).item())


SETTINGS = st.one_of(
    st.builds(
        Setting,
        module=st.sampled_from(["gemm", "dense_ffn"]),
        backend=st.just("any"),
        dtype=st.sampled_from(["bfloat16", "float16"]),
        weights=st.sampled_from([None, "int4"]),
        batch=st.sampled_from([1, 8]),
        d_model=SIZES,
        d_ff=SIZES,
    ),
    st.builds(
        Setting,
        module=st.just("moe_ffn"),
        backend=st.just("any"),
        dtype=st.just("bfloat16"),
        weights=st.sampled_from([None, "int8"]),
        d_model=SIZES,
        d_ff=SIZES,
        experts=st.sampled_from([8, 64, 256]),
        top_k=st.sampled_from([1, 2, 8]),
        routing=st.sampled_from(["balanced", "skewed", "power_law"]),
        gated=st.sampled_from([None, True, False]),
    ),
    st.builds(
        Setting,
        module=st.just("attention"),
        backend=st.just("any"),
        dtype=st.just("bfloat16"),
        kv_dtype=st.sampled_from([None, "float8"]),
        batch=st.sampled_from([1, 8]),
        context=st.sampled_from([0, 128, 8192]),
        heads=st.just(32),
        kv_heads=st.sampled_from([1, 8, 32]),
        head_dim=st.sampled_from([64, 128]),
    ),
)


@pytest.mark.slow
@given(SETTINGS, GPUS, st.floats(1.0, 30.0))
def test_what_hardware_can_do_passes_and_other_units_do_not(
    setting: Setting, platform: str, factor: float
) -> None:
    """Up to 30 times the fastest time passes; a factor of 1000 either way does not."""
    probe = judged(setting, (1.0,) * len(NS), platform)
    fastest = [1.0 / cold for cold in probe["slowness_cold"]]
    true = tuple(factor * us for us in fastest)
    assert not is_fast(judged(setting, true, platform))
    assert not is_slow(judged(setting, true, platform))
    assert is_slow(judged(setting, tuple(1000 * us for us in true), platform))
    assert is_fast(judged(setting, tuple(us / 1000 for us in true), platform))


@given(SETTINGS)
def test_the_fastest_time_is_that_of_the_counted_work(setting: Setting) -> None:
    """If FLOPs decide, the limit is the counted work's FLOPs over phi."""
    counted = {"moe_ffn": "moe", "attention": "attention", "dense_ffn": "dense"}
    kind = counted.get(setting.module)
    if kind is None or setting.routing == "power_law" or setting.gated is False:
        return
    n = NS[-1]
    if kind == "dense":
        work = dense_work(setting, n, "test")
    elif kind == "moe":
        work = moe_work(setting, routed_pairs(setting, n), "test")
    else:
        work = attention_work(setting, n, "test", tile_rows=64)
    compute_us = work.flop_logical / (PLATFORMS["h100"].peak_tflops[setting.dtype] * 1e6)
    memory_us = work.bytes_compulsory / ((PLATFORMS["h100"].bandwidth_gb_s or 0) * 1e3)
    fastest_us = 1.0 / judged(setting, (1.0,) * len(NS))["slowness_cold"][-1]
    assert max(compute_us, 1.5) <= fastest_us * (1 + 1e-9)
    assert fastest_us <= max(compute_us, memory_us, 1.5) * (1 + 1e-9)


def test_stored_bytes_and_the_formats_peak_decide() -> None:
    """The limit uses the stored bytes and the element type's phi."""
    shape = {"module": "gemm", "backend": "any", "d_model": 16384, "d_ff": 16384}
    formats = [{"dtype": "bfloat16"}, {"dtype": "bfloat16", "weights": "int4"}, {"dtype": "float8"}]
    cold = [judged(Setting(**shape, **dtypes), (1.0, 1.0, 1.0, 1.0, 1.0))["slowness_cold"].to_list()
            for dtypes in formats]  # fmt: skip
    sixteen, four, eight = ([1.0 / cold for cold in us] for us in cold)
    assert four[0] == pytest.approx(sixteen[0] * 4.125 / 16, rel=1e-3)
    assert eight[0] == pytest.approx(sixteen[0] / 2)
    assert (four[-1], eight[-1]) == pytest.approx((sixteen[-1], sixteen[-1] / 2), rel=1e-3)


@pytest.mark.parametrize("platform", ["cpu", "mars"])
def test_nothing_is_said_of_an_unknown_platform(platform: str) -> None:
    """Without a GPU's facts no latency is too fast or too slow."""
    gemm = Setting(module="gemm", backend="any", dtype="bfloat16", d_model=64, d_ff=64)
    judgement = judged(gemm, (1e-9, 1e12), platform)
    assert judgement["slowness"].null_count() == 2
    assert not is_fast(judgement)
    assert not is_slow(judgement)


def test_nothing_is_said_of_a_whole_model() -> None:
    """A whole model's latency is not checked, since its work is not counted."""
    judgement = judged(Setting(module="model", backend="any", dtype="bfloat16"), (1e-9, 1e12))
    assert judgement["slowness"].null_count() == 2


def test_weights_that_a_cache_can_hold() -> None:
    """Weights that fit in the L2 may be faster than memory allows, larger ones may not."""
    small = Setting(module="gemm", backend="any", dtype="bfloat16", d_model=4096, d_ff=4096)
    large = Setting(module="gemm", backend="any", dtype="bfloat16", d_model=16384, d_ff=16384)
    assert not is_fast(judged(small, (2.0,)))
    assert is_fast(judged(large, (40.0,)))
    assert not is_fast(judged(large, (160.0,)))


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
def test_a_rank_has_its_share_of_the_experts(routing: Controlled) -> None:
    """One of eight ranks may take the time of its own share, not of all experts."""
    shape = {"experts": 256, "top_k": 8, "d_model": 7168, "d_ff": 2048, "routing": routing}
    rank, all_experts = (
        Setting(module="moe_ffn", backend="any", dtype="float8_block", **shape, ep=ep)
        for ep in (8, 1)
    )
    h100 = PLATFORMS["h100"]
    assert h100.bandwidth_gb_s
    works = [moe_work(rank, rank_pairs(rank, n), "test") for n in NS]
    least_us = tuple(
        max(
            counted.bytes_compulsory / (h100.bandwidth_gb_s * 1e3),
            counted.flop_logical / (h100.peak_tflops["float8"] * 1e6),
            1.5,
        )
        for counted in works
    )
    assert not is_fast(judged(rank, least_us))
    assert not is_slow(judged(rank, least_us))
    assert is_fast(judged(all_experts, least_us)) == (routing == "balanced")


@pytest.mark.parametrize("module", ["delta_net", "mamba2", "stream_mixing"])
def test_nobody_knows_how_slow_unknown_work_may_be(module: Module) -> None:
    """If a module's work is not counted, only the shortest kernel bounds its latency."""
    setting = Setting(module=module, backend="any", dtype="bfloat16", batch=1024)
    assert not is_slow(judged(setting, (900.0, 1e5)))
    assert is_fast(judged(setting, (0.4,)))
