"""Tests of what a whole model's forward does with N."""
