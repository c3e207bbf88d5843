"""Tests of `decoders/stored`."""
