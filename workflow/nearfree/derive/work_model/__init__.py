"""T(N) of one module, from the work of its kernels and a few calibrated constants."""
