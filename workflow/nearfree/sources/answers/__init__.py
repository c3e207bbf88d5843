"""Granularity of one setting, from what a release says."""
