"""Kernels in binaries, and the rules that speak of them."""
