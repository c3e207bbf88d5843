"""Tests of what tuning says."""
