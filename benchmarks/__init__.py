"""Benchmarks of speed, printed as ratios within one run."""
