"""The scopes of the log that are no platform."""

PUBLIC = "public"
"""What the paper and others published, and the calibrated constants."""
SOURCES = "sources"
"""The rules of backends' releases."""
IMPORTED = "imported"
"""Curves of others, used only where the config asks for them."""
PLATFORM = "platform"
"""Stands for each platform, whose scope has its own name."""


def kind(scope: str) -> str:
    """Return which kind of scope a name is of: one of these."""
    return scope if scope in {PUBLIC, SOURCES, IMPORTED} else PLATFORM
