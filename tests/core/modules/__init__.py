"""Tests of nearfree.core.modules."""
