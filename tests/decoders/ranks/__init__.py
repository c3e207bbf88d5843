"""Tests of `decoders/ranks`."""
