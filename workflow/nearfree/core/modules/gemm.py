"""One matrix product, [rows, d_model] by [d_model, d_ff]: a projection of a model."""

from nearfree.core.modules import dense_ffn
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, unpadded


def gemm_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of one product: 2 b N d_model d_ff FLOPs, none of them padding."""
    rows, d_model, d_ff = setting.batch * n, setting.d_model or 0, setting.d_ff or 0
    elements = d_model * d_ff + rows * (d_model + d_ff)
    return unpadded(setting, rows * d_model * d_ff, elements, basis)


def _work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    del rows, group  # nothing is padded
    return gemm_work(setting, n, basis)


GEMM = ModuleKind(name="gemm", title="matrix product", own="batch", work=_work, laws=dense_ffn.LAWS)
"""Its laws are those of a Dense FFN, in which the number of matrices cancels."""
