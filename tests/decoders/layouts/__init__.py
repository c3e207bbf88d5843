"""Tests of `decoders/layouts`."""
