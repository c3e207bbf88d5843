"""Unit-bearing constants and conversions."""

NS_PER_US = 1_000.0
US_PER_MS = 1_000.0
US_PER_S = 1_000_000.0
BYTES_PER_GB = 1_000_000_000.0
FLOP_PER_GFLOP = 1_000_000_000.0
GFLOP_PER_TFLOP = 1_000.0
MB_PER_GB = 1000


def balance_flop_per_byte(peak_tflops: float, bandwidth_gb_s: float) -> float:
    """Return the hardware balance point rho = phi / beta, in FLOP per byte (paper, sec. 2.3)."""
    return peak_tflops * GFLOP_PER_TFLOP / bandwidth_gb_s
