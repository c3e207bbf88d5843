"""A simulated kernel: its curve's T(N), and the work that the real ones would do."""

import pytest
from conftest import make_setting
from msgspec.structs import replace
from nearfree.core.modules.attention import attention_work
from nearfree.core.modules.dense_ffn import dense_work, gemm_work
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.hardware.simulated import Curve
from nearfree.measure.simulated import SimulatedKernel
from simulated_machine import EXPERTS, FFN, GRID, MODEL, REFUSED, knee, make_machine

ATTENTION = make_setting(
    module="attention", backend="flash_attn", dtype="bfloat16", d_model=None, d_ff=None,
    context=128, heads=8, kv_heads=2, head_dim=64,
)  # fmt: skip
PRODUCT = make_setting(module="gemm", dtype="bfloat16")


def kernel(setting: Setting, **curve: object) -> SimulatedKernel:
    """Return the kernel of a setting on a machine that has one curve of it."""
    of = Curve(setting=setting, n=(1, 9), latency_us=(1.0, 2.0), **curve)  # type: ignore[arg-type]
    return SimulatedKernel(setting, (1, 9), make_machine(curves=(of,), forwards=()))


def test_a_module_takes_what_its_curve_says() -> None:
    """T(N) without noise is the file's."""
    kernel = SimulatedKernel(FFN, GRID, make_machine())
    assert [kernel.latency_us(n) for n in GRID] == list(map(knee, GRID))
    assert kernel.cache == "cold"


def test_a_model_takes_the_sum_of_its_modules() -> None:
    """T(N) of a model is that of its modules, each as often as it runs."""
    kernel = SimulatedKernel(MODEL, GRID, make_machine())
    assert [kernel.latency_us(n) for n in GRID] == [knee(n) + 3 * (10 + n) for n in GRID]


@pytest.mark.parametrize("setting", [REFUSED, replace(FFN, batch=3)])
def test_nothing_is_made_of_a_setting_without_a_curve(setting: Setting) -> None:
    """Before anything is timed, a setting without a curve fails; so does an N without a time."""
    with pytest.raises(EvidenceError):
        SimulatedKernel(setting, GRID, make_machine())
    with pytest.raises(EvidenceError, match="lacks N=5"):
        SimulatedKernel(FFN, (1, 5), make_machine())


def test_products_are_counted_as_asked_for() -> None:
    """FFNs and matrix products are counted without padding."""
    for setting, count in ((FFN, dense_work), (PRODUCT, gemm_work)):
        assert kernel(setting).work(9) == count(setting, 9, f"simulated: {setting.backend}")


def test_experts_are_padded_to_the_blocks_of_the_rules() -> None:
    """The rows of a block at each N are those of the release that the curve follows."""
    made = kernel(EXPERTS, release="vllm==0.33.0", block_rows=(16, 64))
    pairs = routed_pairs(EXPERTS, 9)
    expected = moe_work(EXPERTS, pairs, "simulated: vllm==0.33.0", block_rows=64)
    assert made.work(9) == expected
    assert made.work(1).block_rows == 16


def test_attention_fills_the_tiles_of_the_rules() -> None:
    """Rows of a tile, and heads that share one, are those of the release."""
    made = kernel(ATTENTION, block_rows=(64, 128), rows_per_position=(4, 1))
    expected = attention_work(ATTENTION, 1, "simulated: flash_attn", tile_rows=64, group=4)
    assert made.work(1) == expected
    assert made.work(9).block_rows == 128


def test_a_models_work_is_its_modules() -> None:
    """FLOPs and bytes are the sums over modules; a model has no blocks."""
    work = SimulatedKernel(MODEL, GRID, make_machine()).work(8)
    ffn, experts = (SimulatedKernel(s, GRID, make_machine()).work(8) for s in (FFN, EXPERTS))
    assert work.flop_executed == ffn.flop_executed + 3 * experts.flop_executed
    assert work.flop_logical == ffn.flop_logical + 3 * experts.flop_logical
    assert work.bytes_compulsory == ffn.bytes_compulsory + 3 * experts.bytes_compulsory
    assert (work.blocks, work.block_rows) == (None, None)
