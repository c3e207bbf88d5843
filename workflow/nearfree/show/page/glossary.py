"""The report's glossary: the meaning of each letter, verdict and predictor."""

from nearfree.core.setting import FIELDS
from nearfree.derive.claims.judge import CLAIMS
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.derive.tables.schema import Table


def _meaning(table: Table, column: str) -> str:
    return table.body[column].meaning


_MEANINGS = {
    "N": "positions per request in one decode forward",
    "T(N)": "latency of that forward; T(N) / T(baseline) is paired within rounds",
    "N_max": "the boundary: the largest N of the grid at which T(N) is at most (1 + tolerance) "
    'times T(baseline). "≥ N": the grid ends there, so N_max may be larger',
    "baseline": "the N that T(N) is compared with: 1, or with balanced experts the first N that "
    "gives every expert a token, ceil(E / (b k))",
    "tolerance": "epsilon: the share of T(baseline) by which a near-free forward may be slower",
    "interval": "the range of N_max that follows from the 95 % intervals of the ratios; for a "
    "prediction, the range that follows from the errors of its calibration",
    "sharp, bracketed, undecided, censored, printed": _meaning(BOUNDARIES, "verdict"),
    "stable, gradual, jumping": _meaning(SENSITIVITY, "verdict"),
    "robust, fragile": f"for a boundary, {_meaning(SENSITIVITY, 'robust')}; fragile if not",
    "hit": "a prediction that is at least N_max and below the next N of the grid",
    "refused": "not predicted, since a rule or fact is missing; it counts as a miss in shares",
    "idle compute": "predictor: the forward is free until its arithmetic intensity reaches rho; it "
    "ignores padding and tiles (N_idle)",
    "principle": "predictor: the paper's law. Dense: the minimum of rho s / (2 b) and M_attn; "
    "balanced experts: of M_moe E / k, tau and M_attn; skewed: of M_moe and M_attn.",
    "principle resolved": "predictor: the same law, with M_moe, tau and M_attn as the release's "
    "source chooses them for the real shape",
    "principle counted": "predictor: the same law, with the blocks that the runs counted",
    "work model": "predictor: T(N) of each module from its work, blocks and tiles, and constants "
    "that were calibrated on imported curves; the boundary is that of this T(N)",
    "modules sum": "predictor: T(N) of a model as the sum of its modules, timed in isolation",
    "modules minimum": "predictor: the least boundary of a model's modules, timed in isolation",
    "rho": "FLOPs that a device executes in the time it takes to move one byte: phi / beta",
    "datasheet": "phi and beta as the vendor states them",
    "probed stream": "phi and beta as timed on the machine, beta by streaming through memory",
    "probed gemm": "the same, with beta from the weight traffic of a matrix product",
    **{
        field.letter: f"{field.words}: {', '.join(filter(None, (field.meaning, field.unit)))}"
        for field in FIELDS.values()
        if field.letter
    },
    "s": "bytes per element",
    "g": "query heads per key-value head",
    "balanced, skewed, router, power_law, loads": "how tokens are routed to experts: evenly; all "
    "to the same k; by the model's own router; by a power law with this exponent; by measured "
    "loads, named by their digest",
    "M_moe": "rows of the block to which an expert's tokens are padded",
    "tau": "the last number of tokens at which that block is used",
    "M_attn": "the most positions that attention processes with the query tiles of N = 1",
    "grew most": "the module whose time grows most from the baseline to the N after N_max",
    "measured, simulated, imported, published, predicted": "timed here; drawn from a simulation; "
    "timed by others and imported as curves; printed in the paper; computed by a predictor",
    "in sample, out of sample": "whether constants were calibrated on this platform, or not",
    "holds, partly, fails, undecided": f"for a claim, {_meaning(CLAIMS, 'verdict')}",
    "yes, partly, no, open": "the same for a research question",
    "take, study, scope": "one measurement of a plan; one module with one backend; one platform",
}
WORDS = tuple(_MEANINGS.items())
"""Each word, or group of mutually exclusive words, with its meaning."""
