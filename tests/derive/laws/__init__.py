"""Tests of nearfree.derive.laws."""
