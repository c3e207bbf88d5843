"""T(N) of a Mamba-2 mixer's pass over its states: their bytes over beta, over what two calls take.

Nothing was fitted here: the form and its constants are those of gated delta nets, whose kernels do
alike, stated before any time of such a mixer was looked at. A convolution's update and a kernel
that reads a state and stores it at each position (vllm 0.33.0, vllm/model_executor/layers/mamba/
mamba_mixer2.py:949-1106) move S and rows of the same widths.
"""

from nearfree.core.modules.mamba2 import MAMBA2 as KIND
from nearfree.derive.work_model.delta_net import DELTA_NET, state_us
from nearfree.derive.work_model.family import Family

MAMBA2 = Family(
    name="mamba2",
    meaning="the bytes of a Mamba-2 mixer's states and rows over beta, over two calls",
    modules=(KIND.name,),
    constants=DELTA_NET.constants,
    hypotheses=DELTA_NET.hypotheses,
    latency_us=lambda features, values, _hypothesis: state_us(features, values),
    stated_band=DELTA_NET.stated_band,
)
