"""Tuning: what a trace and T(N) say of every setting, which to choose, and what was proven."""
