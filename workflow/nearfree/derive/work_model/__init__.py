"""T(N) of one module, from the work that its kernels do and a few calibrated constants."""
