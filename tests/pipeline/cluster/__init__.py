"""Tests of nearfree.pipeline.cluster."""
