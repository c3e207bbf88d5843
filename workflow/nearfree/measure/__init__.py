"""Measurement: protocols, sampling, and the takes that hold the samples."""
