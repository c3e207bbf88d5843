"""Tests of nearfree.kernels."""
