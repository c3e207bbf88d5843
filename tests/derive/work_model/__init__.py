"""Tests of T(N): forms, fits and questions."""
