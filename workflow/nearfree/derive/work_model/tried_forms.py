# ruff: noqa: E501
"""Every form of T(N) that was tried, with its scores on the curves that it was fitted to.

Figures are hit / within 1.31 / within 2 / median error of T(N) / T(baseline), on A100 and H100.
"""

from nearfree.derive.work_model.collective import COLLECTIVES

TRIED: dict[str, tuple[str, ...]] = {
    "gemm": (
        "p-norm, no padding: .07 / .35 / 1.00 / .038",
        "p-norm, rows padded to 16: .08 / .42 / 1.00 / .038",
        "p-norm, rows padded to 64: .24 / .47 / .98 / .038",
        "p-norm, rows padded to 128: .44 / .79 / .98 / .040",
        "p-norm, geometric mean of the paddings to 16 and 128: .13 / .44 / .99 / .036",
        "p-norm, fitted mixture of the paddings to 16 (or 64) and 128: .24 / .42 / .98 / .037",
        "p-norm, padded to 128, activations scaled by a constant: .39 / .75 / .98 / .040",
        "waves of the best of nine tiles over SMs: .22 / .41 / .95 / .045",
        "two hypotheses with the same constants: .21 / .42 / .99 / .035",
        "two hypotheses, median of boundaries under jitter: .27 / .75 / .98 / .037",
        "two hypotheses, each with its own constants (taken): .35 / .79 / .98 / .038",
    ),
    "moe_triton": (
        "p-norm of compute, weights (slow where BLOCK_SIZE_K is 32) and L2: .53 / .69 / .93 / .036",
        "the same, compute slow there too: .58 / .68 / .92 / .027",
        "the same, activations scaled by a constant: .59 / .67 / .89 / .043",
        "a cost a tile, in ten places of the sum: .59-.63 / .67-.74 / .91-.95 / .024-.033",
        "L2 traffic by real rows instead of padded ones, in seven places: .55-.62 / .71-.74 / .95-.96 / .022-.026",
        "chip (larger of compute and L2) against memory, in nine variants: .59-.64 / .70-.74 / .95-.96 / .018-.023",
        "the same, a share of phi for every SM: .64 / .76 / .96 / .019",
        "the same, residuals weighted near the tolerance, in six variants: .61-.64 / .73-.74 / .94-.95 / .019-.021",
        "the same, what an SM can be fed beside phi: .62 / .73 / .95 / .020",
        "the same, L2 by SMs, one constant, beta, or between: .60-.64 / .71-.73 / .95-.96 / .020",
        "the same, L2 by beta, tiles added (taken, the paper's H20 in view): .62 / .72 / .96 / .020",
    ),
    "moe_library": (
        "best of the row tiles 16 to 128 in the first form of moe_triton: .12 / .41 / .88 / .030",
        "best of 16 to 128, of 64 and 128, or one alone, chip against memory: .40-.45 / .69-.79 / .90-.91 / .010-.013",
        "the same, what an SM can be fed beside phi: .45 / .79 / .91 / .011",
        "the same, L2 by beta (taken)",
    ),
    "attention_prefill": (
        "tiles of 64 or 128 rows, packed or not, from N = 1: .41-.48 / .67-.71 / .74-.79 / .078-.096",
        "the same from the smallest N > 1: .58-.62 / .75-.79 / .96-.98 / .086-.100",
        "packed by the kernel's name, eight variants: .60-.68 / .78-.83 / .94-.99 / .070-.083",
        "the same in waves, with steps of 64 keys: .68 / .83 / .99 / .070",
        "the same, what an SM can be fed instead of a share of phi (taken): .70 / .84 / .99 / .070",
        "with a cost of every N > 1, from N = 1: .53 / .72 / .81 / .065",
    ),
    "attention_cached": (
        "keys split over all SMs, tiles of 64 rows (taken): T(1) over L within .06",
        "the constants of attention_prefill: within .14",
    ),
    **dict.fromkeys(
        (family.name for family in COLLECTIVES),
        ("waiting and bytes over links, by algorithm (taken)",),
    ),
}
