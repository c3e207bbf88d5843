"""Tests of nearfree.models."""
