"""Tests of nearfree.backends.adapters.kernel."""
