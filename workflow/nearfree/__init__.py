"""N_max, the number of near-free decode positions: measured, predicted, traced to evidence."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfree.api import boundary, curves, granularity, predict, schedule

__version__ = "0.1.0"
__all__ = ["__version__", "boundary", "curves", "granularity", "predict", "schedule"]


def __getattr__(name: str) -> Any:
    """Return a function of the Python API; import the API at the first use."""
    if name not in __all__:
        raise AttributeError(f"module 'nearfree' has no attribute {name!r}")
    from nearfree import api

    return getattr(api, name)
