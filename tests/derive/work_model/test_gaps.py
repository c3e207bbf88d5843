"""What calibration and answers refuse, and modules of one form that are calibrated together."""

from typing import Any

import pytest
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.core.scopes import PUBLIC
from nearfree.derive.work_model.calibrate import calibrate
from nearfree.errors import NearfreeError
from nearfree.log.names import Layout
from public.test_curves import put

from derive.predict.test_answers import answered
from derive.tables.logs import CONFIG
from derive.work_model.imported import STREAM, along_contexts, along_n

PLATFORMS = Config(CONFIG).platforms


def made(layout: Layout, **sheets: Any) -> None:
    """Calibrate on H100 without the network, with changed facts of some platforms."""
    calibrate(layout, PLATFORMS | sheets, ("h100",), stream=STREAM, epsilon=0.2, offline=True)


def test_curves_of_two_modules_of_one_form(layout: Layout) -> None:
    """Products and Dense FFNs of one import are calibrated together."""
    gemm = list(along_n("gemm"))
    ffn = [replace(curve, setting=replace(curve.setting, module="dense_ffn")) for curve in gemm]
    put(layout, STREAM, *gemm, *ffn)
    made(layout)


def test_curves_over_contexts_of_a_platform_without_facts(layout: Layout) -> None:
    """A platform without a known number of SMs is refused by name."""
    put(layout, STREAM, *along_contexts("h100"))
    with pytest.raises(NearfreeError, match="h100"):
        made(layout, h100=replace(PLATFORMS["h100"], sm_count=None))


def test_a_refused_calibration_leaves_nothing(layout: Layout) -> None:
    """A refusal leaves no file, not even an unsealed attempt."""
    put(layout, STREAM, *along_n("gemm"))
    with pytest.raises(NearfreeError, match="no curve of h20"):
        calibrate(layout, PLATFORMS, ("h20",), stream=STREAM, epsilon=0.2, offline=True)
    assert layout.takes(PUBLIC, sealed=False) == []


@pytest.mark.parametrize("lacking", ["d_model", "d_ff"])
@pytest.mark.parametrize("module", ["gemm", "dense_ffn"])
def test_a_product_without_a_shape_is_refused(module: str, lacking: str) -> None:
    """A product without one of its two sizes is refused."""
    shape = {"d_model": 4096, "d_ff": 4096, lacking: None}
    (answer_row,) = answered({"module": module, "backend": "any", **shape})
    assert answer_row["refusal"] == f"the {module} setting lacks {lacking}"
