"""Tests of nearfree.hardware."""
