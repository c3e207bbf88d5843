"""The equation of a prediction: the law of its module, or of a whole model."""

from collections.abc import Mapping

from nearfree.core.modules.kind import Equation
from nearfree.core.modules.registry import KINDS
from nearfree.derive.tables.boundaries import N_MAX_FORMULA

_LAWS: dict[tuple[str, str], Equation] = {
    (predictor, kind.name): equation
    for kind in KINDS.values()
    if kind.laws
    for predictor, equation in (
        ("idle_compute", kind.laws.idle),
        ("principle", kind.laws.principle),
    )
}
_LAWS["principle", "engine"] = Equation(
    "the largest N up to which no matrix's path or passes over it are other than at the baseline, "
    "for the b N rows of a forward",
    "sec. 4",
)
_WHOLE_MODELS = {
    "idle_compute": Equation("the smallest N_idle of attention and the FFN", "sec. 3"),
    "principle": Equation(
        "the smallest of rho s / (2 b) if dense, M_moe E / (b k) and tau / b if balanced, "
        "M_moe / b if skewed, and M_attn; in the paper b = 1 for experts",
        "sec. 4.1 and 4.2",
    ),
}
_NOT_OF_THE_PAPER = {
    "work_model": Equation(f"{N_MAX_FORMULA}, T by the work model", ""),
    "modules_sum": Equation(
        f"{N_MAX_FORMULA}, T the sum of the modules' times when measured apart", ""
    ),
    "modules_minimum": Equation("the smallest boundary of the modules when measured apart", ""),
    "principle_counted": Equation(
        "the paper's law with the granularity that the modules' runs counted", ""
    ),
}
_COMPOSITIONS = {
    "sum": Equation(f"{N_MAX_FORMULA}, T the sum of the modules' times by the work model", ""),
    "minimum": Equation(
        "the smallest of the modules' boundaries, each by the work model's T(N)", ""
    ),
}


def prediction_equation(row: Mapping[str, object]) -> Equation | None:
    """Return the equation of a row of `predictions` by its predictor and module."""
    predictor = _law(row)
    if predictor in _NOT_OF_THE_PAPER:
        return _NOT_OF_THE_PAPER[predictor]
    if row.get("module") == "model":
        return _WHOLE_MODELS.get(predictor)
    return _LAWS.get((predictor, str(row.get("module"))))


def lookup_equation(row: Mapping[str, object]) -> Equation | None:
    """Return the equation of a row of `lookup` by its predictor and composition."""
    return _WHOLE_MODELS.get(_law(row)) or _COMPOSITIONS.get(str(row.get("composition")))


def _law(row: Mapping[str, object]) -> str:
    """Return a predictor's law: `_resolved` predictors use the same law with releases' rules."""
    return str(row.get("predictor")).removesuffix("_resolved")
