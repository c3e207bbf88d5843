"""Tuning: speeds predicted from traces and T(N), the chosen setting, and the measured proof."""
