"""Tests of what engines are handed."""
