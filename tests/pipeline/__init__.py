"""Tests of nearfree.pipeline and of the rules."""
