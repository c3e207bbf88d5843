"""Tests of nearfree.preregister."""
