"""Tests of nearfree.theory."""
