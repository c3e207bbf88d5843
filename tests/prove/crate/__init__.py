"""Tests of crates."""
