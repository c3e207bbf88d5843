"""The scopes of the log that are not platforms."""

PUBLIC = "public"
"""The paper's and others' published results, and the calibrated constants."""
SOURCES = "sources"
"""The rules of backends' releases."""
IMPORTED = "imported"
"""Imported curves, used only if the config has an import."""
PLATFORM = "platform"
"""The kind of every platform's scope, which is named after the platform."""


def kind(scope: str) -> str:
    """Return the kind of a scope: PUBLIC, SOURCES, IMPORTED or PLATFORM."""
    return scope if scope in {PUBLIC, SOURCES, IMPORTED} else PLATFORM
