"""Backends' own source code: fetched, read, never executed."""
