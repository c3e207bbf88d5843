"""The forecast of llama.cpp's forward on an NVIDIA GPU: by its rules alone."""

from nearfree.derive.granularity.engine_cuda import CudaEngineRules
from nearfree.derive.laws.engine_law import principle_of_engine
from nearfree.derive.predict.engine_answers import MOST_ROWS, EngineForecast

NO_CURVE = (
    "no curve of llama.cpp on a GPU is on record, so T(N) is not predicted; `nearfree predict "
    "--model CONFIG --platform GPU` predicts that of the same model in vLLM or SGLang"
)
"""Why the work model has no answer."""


def gpu_forecast(rules: CudaEngineRules) -> EngineForecast:
    """Return the prediction of a forward from N = 1.

    Raises
    ------
    NearfreeError
        A rule is missing, or a type has kernels that are not read.
    """
    return EngineForecast(
        rules=rules,
        resolved=principle_of_engine(rules, 1, MOST_ROWS),
        changes=rules.changes(MOST_ROWS // rules.forward.batch),
        timed=None,
        refusal=NO_CURVE,
    )
