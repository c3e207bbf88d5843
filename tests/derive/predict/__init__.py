"""Tests of nearfree.derive.predict."""
