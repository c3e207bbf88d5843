"""These tests run torch, on one thread: what they run is small."""

import pytest
import torch
from machine import quiet_machine

__all__ = ["quiet_machine"]


@pytest.fixture(autouse=True)
def one_thread(quiet_machine: None) -> None:
    """Run torch on one thread; `quiet_machine` gives it its threads back."""
    torch.set_num_threads(1)
