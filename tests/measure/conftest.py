"""These tests run torch, and a real engine where it is here."""

from engines.conftest import real
from machine import quiet_machine

__all__ = ["quiet_machine", "real"]
