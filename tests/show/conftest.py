"""Tables of whole models, which figures and the report show."""

import polars as pl
import pytest
from nearfree.show.figures.listing import Frames

from show.figures.measured_models import model_rows


@pytest.fixture(scope="session")
def models() -> Frames:
    """Return the tables of whole models, dense and with experts, that a machine measured."""
    return model_rows()


@pytest.fixture(scope="session")
def scored(models: Frames) -> pl.DataFrame:
    """Return the scores of their predictions at the reported tolerance."""
    return models["composition"].filter(epsilon=0.2)
