"""Calibrated bands that tests seal into a log."""

from nearfree.log.events import BandsCalibrated, RegimeBand

from derive.reference.made import (
    EPSILON,
)

BANDS = BandsCalibrated(
    epsilon=EPSILON,
    covered=0.8,
    bands=tuple(
        RegimeBand(regime=regime, module=module, formats=formats, routing=routing, band=band,
                   curves=9)
        for regime, module, formats, routing, band in (
            ("R2", "gemm", "bfloat16", "", 0.1),
            ("R2", "gemm", "float8", "", 0.15),
            ("R2", "moe_ffn", "bfloat16", "balanced", 0.2),
            ("R2", "moe_ffn", "bfloat16", "power_law", 0.3),
            ("R2", "moe_ffn", "float8", "balanced", 0.4),
            ("R0", "gemm", "bfloat16", "", 0.5),
        )
    ),
)  # fmt: skip
