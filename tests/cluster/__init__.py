"""Tests of nearfree.cluster."""
