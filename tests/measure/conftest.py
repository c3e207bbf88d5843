"""These tests run torch."""

from machine import quiet_machine

__all__ = ["quiet_machine"]
