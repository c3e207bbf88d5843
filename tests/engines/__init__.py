"""Tests of the engines."""
