"""Tests of public curves of kernels: groups, regimes and their record."""
