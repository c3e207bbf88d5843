"""Tests of what public curves say of kernels: groups, regimes and their record."""
