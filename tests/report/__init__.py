"""Tests of nearfree.report."""
