"""Pictures inside the page: only shapes and text, nothing that runs or loads."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from nearfree.errors import TableError

_ELEMENTS = frozenset(
    {
        *("svg", "g", "path", "rect", "line", "circle", "text", "tspan", "title", "desc"),
        *("defs", "clipPath", "linearGradient", "stop", "symbol", "use"),
    }
)
_NAMESPACE = "{http://www.w3.org/2000/svg}"  # the name that SVG has, not an address to load
_LOCAL_URL = re.compile(r"url\(\s*['\"]?#")


def safe_svg(path: Path, raw: bytes) -> str:
    """Return the text of a drawing; TableError if it is more than a drawing.

    Parameters
    ----------
    path
        Where it lies.
    raw
        What stands there.
    """
    try:
        text = raw.decode()
        if "<!" in text or "<?" in text:
            raise _refused(path, "holds a declaration")
        root = ET.fromstring(text)  # noqa: S314
    except (UnicodeDecodeError, ET.ParseError) as error:
        raise _refused(path, f"is no drawing: {error}") from error
    for element in root.iter():
        if element.tag.removeprefix(_NAMESPACE) not in _ELEMENTS:
            raise _refused(path, f"holds the element {element.tag[:80]}")
        for name, value in element.attrib.items():
            _check_attribute(path, name.rpartition("}")[2].lower(), value)
    return text


def _check_attribute(path: Path, name: str, value: str) -> None:
    loads = "url(" in value and not _LOCAL_URL.search(value)
    if name.startswith("on") or loads or (name == "href" and not value.startswith("#")):
        raise _refused(path, f"holds the attribute {name}={value[:80]!r}")


def _refused(path: Path, what: str) -> TableError:
    return TableError(f"{path} {what}", remedy="Draw the figures again")
