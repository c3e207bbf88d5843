"""What an event must not hold: a home folder or a URL, for a chain cannot be cleaned later."""

from pathlib import Path

URL = "://"


def home() -> str | None:
    """Return the user's home folder, None where the system knows none worth hiding."""
    try:
        found = str(Path.home())
    except RuntimeError:
        return None
    return found if len(found) > 1 else None


def private_parts() -> tuple[bytes, ...]:
    """Return the pieces of text that must not be on record."""
    return tuple(part.encode() for part in (home(), URL) if part)


def without_private(text: str) -> str:
    """Return an error's text with its folders shortened and its URLs broken up."""
    here = str(Path.cwd())
    text = (text.replace(here, ".") if len(here) > 1 else text).replace(URL, ":")
    found = home()
    return text.replace(found, "~") if found else text
