"""How each table's numbers are made, in a line: the formula, the paper's place, our code."""

from collections.abc import Mapping

from msgspec import Struct


class Formula(Struct, frozen=True):
    """How a row was made.

    `text` is readable by a person, `paper` names the equation's section there (empty where it has
    none), and `code` is the function of this project that computes it.
    """

    text: str
    paper: str
    code: str


_N_MAX = "sec. 2.2, definition of N_max(epsilon)"
_IDLE_MOE = (
    "N_idle = 2 rho s E_act d_ff / (b (4 k d_ff - rho s (1 + 3 k + eta k))), unbounded where "
    "4 k d_ff <= rho s (1 + 3 k + eta k)"
)
_PRINCIPLE = (
    "the smallest of rho s / (2 b) if dense, M_moe E / (b k) and tau / b if balanced, M_moe / b if "
    "skewed, and M_attn; in the paper b = 1 for experts"
)
_BLOCKS = "N_max = min(M_moe E / (b k), tau / b) if balanced, M_moe / b if skewed; the paper: b = 1"
_WITHIN = "max { N : T(N) <= (1 + epsilon) T(baseline) }"
_FORMULAS = {
    "platforms": Formula(
        "rho = phi / beta, each as a datasheet says it or a probe timed it",
        "sec. 2.3",
        "nearfree.derive.tables.platforms",
    ),
    "settings": Formula(
        "what was asked, with the first event of its newest take",
        "",
        "nearfree.derive.tables.project",
    ),
    "granularity": Formula(
        "as printed, or read from source in two ways that agree",
        "app. on backends' rules",
        "nearfree.derive.tables.granularity",
    ),
    "tuned": Formula(
        "as the tuned file of the release says it", "", "nearfree.derive.tables.tuned"
    ),
    "latency": Formula(
        "T(N) = median over rounds of the median of a visit's clean samples; its ratio is paired "
        "with the baseline within each round",
        "app. on measurement",
        "nearfree.derive.tables.latency",
    ),
    "work": Formula(
        "counted by the adapter, or told by a profiler; AI = FLOPs / bytes",
        "sec. 2.3",
        "nearfree.derive.tables.work",
    ),
    "time_shares": Formula(
        "median over rounds, each module timed inside the forward; share: of their sum",
        "",
        "nearfree.derive.tables.time_shares",
    ),
    "boundaries": Formula(
        "N_max = max { N : ratio(N) <= 1 + epsilon }, ratio the median over rounds of "
        "T(N) / T(baseline) in each round; under the paper's protocol that of the medians",
        _N_MAX,
        "nearfree.core.boundary",
    ),
    "sensitivity": Formula(
        "robust, unless a neighbouring tolerance moves N_max by more than a step of the grid, or "
        "noise at the headline tolerance could move it",
        "app. on tolerances",
        "nearfree.derive.tables.robust",
    ),
    "predictions": Formula(
        "what a predictor says of N_max, from facts, rules and constants",
        "sec. 2.3, 3 and 4",
        "nearfree.derive.predict.predictions",
    ),
    "validation": Formula(
        "a hit is n_max <= predicted < next N of the grid; a refusal is a miss",
        "",
        "nearfree.derive.score.validation",
    ),
    "composition": Formula(
        "a hit is n_max <= predicted < next N; the limiter is the module whose time grows most "
        "up to it",
        "sec. 4",
        "nearfree.derive.score.composition",
    ),
    "scores": Formula(
        "counts over the rows that were judged", "", "nearfree.derive.score.scores"
    ),
    "claims": Formula(
        "a claim, checked on every row that it speaks of", "", "nearfree.derive.claims"
    ),
    "accuracy": Formula(
        "scores of the function that answers users, which never sees the curves",
        "",
        "nearfree.derive.score.accuracy",
    ),
    "drift": Formula(
        "boundaries of two versions' imported curves of one setting",
        "",
        "nearfree.derive.score.accuracy",
    ),
    "lookup": Formula(
        "minimum of the modules' boundaries, or the boundary of the sum of their T(N)",
        "sec. 4",
        "nearfree.derive.outlook.outlook",
    ),
    "forecast": Formula(
        "T(N) of each module by the work model; the forward's is their sum",
        "",
        "nearfree.derive.outlook.outlook",
    ),
    "schedules": Formula(
        "K = N_max - 1 drafts at each batch size, as the engine takes it",
        "sec. 6",
        "nearfree.derive.schedule",
    ),
    "published_lookup": Formula(
        "min(rho s / (2 b), M_attn), min(M_moe E / (b k), tau / b, M_attn) or min(M_moe / b, "
        "M_attn), with M_attn and d_ff as given",
        "sec. 4 and 6",
        "nearfree.derive.outlook.lookup",
    ),
    "trend": Formula(
        "rho s / (2 b), and M_attn as the paper or a release has it",
        "sec. 4 and app. on hardware",
        "nearfree.derive.outlook.trend",
    ),
    "version_drift": Formula(
        "the rules of each release at the same layer or call", "", "nearfree.derive.outlook.drift"
    ),
}  # fmt: skip
_LAWS = {
    ("idle_compute", "dense_ffn"): ("N_idle = rho s / (2 b)", "sec. 3.2.1"),
    ("idle_compute", "gemm"): ("N_idle = rho s / (2 b)", "sec. 3.2.1"),
    ("idle_compute", "moe_ffn"): (
        _IDLE_MOE,
        "sec. 3.3.1 and app. B.1",
    ),
    ("idle_compute", "attention"): (
        "N_idle = rho s L / (2 L - rho s), unbounded where 2 L <= rho s",
        "sec. 3.4.1 and app. B.2",
    ),
    ("principle", "dense_ffn"): ("N_max = rho s / (2 b)", "sec. 4.1"),
    ("principle", "gemm"): ("N_max = rho s / (2 b)", "sec. 4.1"),
    ("principle", "moe_ffn"): (
        _BLOCKS,
        "sec. 4.2",
    ),
    ("principle", "attention"): ("N_max = M_attn", "sec. 4.1"),
}
_COMPOSED = {
    "idle_compute": ("the smallest N_idle of attention and the FFN", "sec. 3"),
    "principle": (
        _PRINCIPLE,
        "sec. 4.1 and 4.2",
    ),
}
"""Of whole models, by law."""
_OWN = {
    "work_model": f"{_WITHIN}, T by the work model",
    "modules_sum": f"{_WITHIN}, T the sum of the modules' times when measured apart",
    "modules_minimum": "the smallest boundary of the modules when measured apart",
    "principle_counted": "the paper's law with the granularity that the modules' runs counted",
}
"""What is not the paper's."""
_WORK_MODEL = {
    "sum": f"{_WITHIN}, T the sum of the modules' times by the work model",
    "minimum": "the smallest of the modules' boundaries, each by the work model's T(N)",
}


def formula(table: str, row: Mapping[str, object]) -> Formula:
    """Return how a row of a table was made; a predictor's row tells its own formula.

    Parameters
    ----------
    row
        Its columns by name.
    """
    known = _FORMULAS[table]
    predictor = str(row.get("predictor")).removesuffix("_resolved")
    said = known.text, known.paper
    if table == "boundaries" and row.get("origin") == "published":
        said = f"as printed; N_max = {_WITHIN}", _N_MAX
    elif table == "predictions" and predictor in _OWN:
        said = _OWN[predictor], ""
    elif table == "predictions" and row.get("module") == "model":
        said = _COMPOSED.get(predictor, said)
    elif table == "predictions":
        said = _LAWS.get((predictor, str(row.get("module"))), said)
    elif table == "lookup":
        composed = _WORK_MODEL.get(str(row.get("composition")), known.text), ""
        said = _COMPOSED.get(predictor, composed)
    return Formula(*said, known.code)
