"""Binaries of releases: which kernels they hold, and whether rules say the same."""
