"""The independent validator, run without any network.

The one remote document of a crate is RO-Crate's own context. The terms of it that crates use stand
here, and the validator finds them where it looks while offline: in its HTTP cache.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from unittest.mock import patch

import msgspec
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from rocrate_validator import services
from rocrate_validator.models import Severity, ValidationSettings
from urllib3 import HTTPResponse

CONTEXT_URL = "https://w3id.org/ro/crate/1.1/context"
_SCHEMA = """
    about actionStatus additionalProperty agent contentSize datePublished description encodingFormat
    endTime error hasPart identifier instrument license mainEntity mentions name object position
    programmingLanguage result softwareRequirements softwareVersion startTime step url value version
    workExample ComputerLanguage ControlAction CreateAction CreativeWork Dataset HowTo HowToStep
    OrganizeAction PropertyValue SoftwareApplication SoftwareSourceCode
"""
CONTEXT = {term: f"http://schema.org/{term}" for term in _SCHEMA.split()} | {
    "File": "http://schema.org/MediaObject",
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
}
"""Terms of the RO-Crate 1.1 context by name."""


class _Context(HTTPAdapter):
    """Answer as the context's own server does."""

    def send(self, request: PreparedRequest, *_: object, **__: object) -> Response:
        answer = HTTPResponse(
            BytesIO(msgspec.json.encode({"@context": CONTEXT})),
            {"Content-Type": "application/ld+json"},
            status=200,
            preload_content=False,
        )
        return self.build_response(request, answer)


def make_cache(path: Path) -> Path:
    """Write a cache of the validator's that holds the context, and return its name."""
    with CachedSession(str(path), backend="sqlite", expire_after=-1) as session:
        session.mount("https://", _Context())
        session.get(CONTEXT_URL, headers={"Accept": "application/ld+json, application/json"})
    return path


@contextmanager
def no_network() -> Iterator[list[object]]:
    """Refuse every connection and every name lookup, and list the attempts."""
    tried: list[object] = []

    def refuse(*address: object, **_: object) -> None:
        tried.append(address)
        raise OSError(f"no network here: {address}")

    with (
        patch.object(socket.socket, "connect", refuse),
        patch.object(socket.socket, "connect_ex", refuse),
        patch.object(socket, "getaddrinfo", refuse),
    ):
        yield tried


def issues(crate: Path, cache: Path) -> set[str]:
    """Return what the validator's REQUIRED checks of the Provenance Run Crate profile say."""
    settings = ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier="provenance-run-crate",
        requirement_severity=Severity.REQUIRED,
        offline=True,
        cache_path=str(cache),
    )
    with no_network() as tried:
        result = services.validate(settings)
    assert tried == []
    return {str(issue.message) for issue in result.get_issues(Severity.REQUIRED)}
