"""The short convolution that some layers have in place of attention; it is per channel.

A position has a row of d channels. Each channel is summed over its last L rows with its own L
weights, so that a request keeps L - 1 rows (arXiv 2511.23404). The products before and after it
are separate modules; the two gates, which multiply rows elementwise, are not counted.
"""

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, element_bytes, unpadded_work


def short_conv_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of N new positions of each request.

    The kept rows are read; they are written with all new rows except the first, so that drafts can
    be rejected. One row per position enters and one leaves, and weights are read once.
    Source: vllm 0.33.0, vllm/model_executor/layers/mamba/ops/causal_conv1d.py:724-815 (the rows of
    all drafts are stored) and layers/mamba/short_conv.py:305-336.
    """
    channels, spanned = setting.d_model or 0, setting.conv or 0
    flop = 2 * setting.batch * n * spanned * channels
    moved = setting.batch * (2 * (spanned - 1) + 3 * n - 1) + spanned
    return unpadded_work(flop, channels * moved * element_bytes(setting), basis)


SHORT_CONV = ModuleKind(
    name="short_conv",
    title="short convolution",
    own="d_model",
    work=short_conv_work,
    knobs=(
        "batch (each request has rows of its own)",
        "tensor parallelism (the fewer channels a rank has, the narrower its rows)",
    ),
)
"""The paper has no law for it: it reads no KV cache."""
