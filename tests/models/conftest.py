"""Fixtures of models' tests: torch runs on one thread."""

from collections.abc import Iterator

import pytest
import torch
from machine import quiet_machine

__all__ = ["quiet_machine"]


@pytest.fixture(autouse=True)
def one_thread(quiet_machine: None) -> None:
    """Run torch on one thread; `quiet_machine` gives it its threads back."""
    torch.set_num_threads(1)


@pytest.fixture
def inference() -> Iterator[None]:
    """Record no gradients."""
    with torch.inference_mode():
        yield
