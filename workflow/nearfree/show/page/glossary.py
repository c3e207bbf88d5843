"""The report's section on words: the meaning of each letter, verdict and predictor."""

from nearfree.core.setting import FIELDS
from nearfree.derive.claims.judge import CLAIMS
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.derive.tables.schema import Table


def _meaning(table: Table, column: str) -> str:
    return table.body[column].meaning


WORDS = (
    ("N", "positions of each request in one decode forward"),
    ("T(N)", "latency of that forward; T(N) / T(baseline) is paired within rounds"),
    (
        "N_max",
        ("the boundary: the largest N of the grid at which T(N) is at most (1 + tolerance) times "
        "T(baseline). \"≥ N\": the grid ends there, so it may be larger"),
    ),
    (
        "baseline",
        ("the N that T(N) is held against: 1, but with balanced experts the first N that gives "
        "every expert a token, ceil(E / (b k))"),
    ),
    ("tolerance", "epsilon: by what share of T(baseline) a near-free forward may be slower"),
    (
        "interval",
        ("the N_max that the 95 % intervals of the ratios allow; of a prediction, what the errors "
        "of its calibration allow"),
    ),
    ("sharp, bracketed, undecided, censored, printed", _meaning(BOUNDARIES, "verdict")),
    ("stable, gradual, jumping", _meaning(SENSITIVITY, "verdict")),
    ("robust, fragile", f"of a boundary, {_meaning(SENSITIVITY, 'robust')}; fragile if not"),
    ("hit", "a prediction that is at least N_max and below the next N of the grid"),
    ("refused", "no answer, since a rule or fact is missing; in shares it counts as a miss"),
    (
        "idle compute",
        ("predictor: the forward is free until its arithmetic intensity reaches rho; neither "
        "padding nor tiles are in it (N_idle)"),
    ),
    (
        "principle",
        ("predictor: the paper's law. Dense: the least of rho s / (2 b) and M_attn; balanced "
        "experts: of M_moe E / k, tau and M_attn; skewed: of M_moe and M_attn."),
    ),
    (
        "principle resolved",
        ("predictor: the same law, with M_moe, tau and M_attn as the sources of the release choose "
        "them for the real shape"),
    ),
    ("principle counted", "predictor: the same law, with the blocks that the runs themselves used"),
    (
        "work model",
        ("predictor: T(N) of each module from its work, its blocks and tiles, and constants that "
        "were calibrated on imported curves; the boundary is read from that T(N)"),
    ),
    ("modules sum", "predictor: T(N) of a model as the sum of its modules, each timed by itself"),
    ("modules minimum", "predictor: the least boundary of a model's modules, each timed by itself"),
    ("rho", "FLOPs that a device does in the time of moving one byte: phi / beta"),
    ("datasheet", "phi and beta as the vendor states them"),
    ("probed stream", "phi and beta as timed on the machine, beta by streaming through memory"),
    ("probed gemm", "the same, with beta from the weight traffic of a matrix product"),
    *(
        (field.letter, f"{field.words}: {', '.join(filter(None, (field.meaning, field.unit)))}")
        for field in FIELDS.values()
        if field.letter
    ),
    ("s", "bytes an element"),
    ("g", "query heads to one key-value head"),
    (
        "balanced, skewed, router, power_law, loads",
        ("how tokens fall on experts: evenly; all on the same k; as the model's own router says; "
        "by a power law of this exponent; as somebody measured it, by a digest"),
    ),
    ("M_moe", "rows of a block to which an expert's tokens are padded"),
    ("tau", "the last number of tokens at which that block is used"),
    ("M_attn", "the most positions that attention takes in with the query tiles of N = 1"),
    ("grew most", "the module whose time grows most from the baseline to the N after N_max"),
    (
        "measured, simulated, imported, published, predicted",
        ("timed here; made by a simulation; timed by others and imported as curves; printed in the "
        "paper; computed, and never a measurement"),
    ),
    ("in sample, out of sample", "whether the constants were calibrated on this platform or not"),
    ("holds, partly, fails, undecided", f"of a claim, {_meaning(CLAIMS, 'verdict')}"),
    ("yes, partly, no, open", "the same of a research question"),
    ("take, study, scope", "one measurement of a plan; one module with one backend; one platform"),
)  # fmt: skip
"""Each word, or group of words that exclude each other, with its meaning."""
