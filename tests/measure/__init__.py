"""Tests of nearfree.measure."""
