"""Tests of T(N): forms, their fit, and what is asked of them."""
