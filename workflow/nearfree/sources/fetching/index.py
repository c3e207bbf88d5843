"""The package index: the artefacts of a package, and the only access to the network."""

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

from msgspec import Struct

from nearfree.errors import SourceError

if TYPE_CHECKING:
    from pypi_simple import ProjectPage
    from requests import Response, Session

TIMEOUT_S = (15, 60)
"""Limits of a request, in seconds: to connect, and without receiving a byte."""
PAGE_LIMIT = 64 * 2**20
"""Limit of an index page, in bytes."""
NETWORK_REMEDY = "Check the network and try again; cached files can be read with --offline"
Kind = Literal["wheel", "sdist", "npm"]
KINDS: dict[str, Kind] = {"wheel": "wheel", "sdist": "sdist"}


class Artefact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a release, as the index lists it."""

    package: str
    version: str
    filename: str
    kind: Kind
    sha256: str
    url: str
    yanked: bool

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {self.filename}"


class Meter:
    """Counts the bytes that all threads of this process read from the network."""

    def __init__(self) -> None:
        self.fetched_bytes = 0
        self._lock = threading.Lock()

    def read(self, response: "Response", size: int) -> bytes:
        """Return the next `size` bytes of a response as sent; fewer only at its end.

        A server's content encoding is not decoded: hashes are of the file itself.
        """
        parts = []
        while size > 0 and (raw := response.raw.read(size)):
            parts.append(raw)
            size -= len(raw)
            with self._lock:
                self.fetched_bytes += len(raw)
        return b"".join(parts)


meter = Meter()
_pages: dict[tuple[str, str], dict[str, list[Artefact]]] = {}
_page_locks: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
_pages_lock = threading.Lock()
_local = threading.local()
_sessions: "WeakSet[Session]" = WeakSet()
_sessions_lock = threading.Lock()


def releases(package: str) -> dict[str, list[Artefact]]:
    """Return a package's wheels and sdists with a SHA-256, by version, oldest version first.

    A page is read once per process. PIP_INDEX_URL names another index.

    Raises
    ------
    SourceError
        The index does not have the package, or is not available.
    """
    from packaging.utils import canonicalize_name

    page_key = (_endpoint(), canonicalize_name(package))
    with _pages_lock:
        page_lock = _page_locks[page_key]
    with page_lock:
        if page_key not in _pages:
            _pages[page_key] = _by_version(page_key[1], _read_page(*page_key))
        return dict(_pages[page_key])


@contextmanager
def open_url(
    url: str,
    label: str,
    headers: dict[str, str] | None = None,
    *,
    setting: str = "PIP_INDEX_URL",
) -> Iterator["Response"]:
    """Open a URL for reading through `meter`; every network fault becomes a SourceError.

    Messages name the `label`, never the URL, which may hold a password; `setting` is the variable
    that names another index.
    """
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    default_headers = {"Accept-Encoding": "identity"}
    try:
        with _session().get(
            url, headers=default_headers | (headers or {}), stream=True, timeout=TIMEOUT_S
        ) as response:
            if response.status_code == 404:
                raise SourceError(
                    f"{label} is unknown to the package index",
                    remedy=f"Check its spelling, and {setting} if that is set",
                )
            if not response.ok:
                raise SourceError(
                    f"{label} is not available: the server answers {response.status_code}",
                    remedy=NETWORK_REMEDY,
                )
            yield response
    except (RequestException, HTTPError) as error:
        raise SourceError(
            f"{label} is not available: the connection failed ({type(error).__name__})",
            remedy=NETWORK_REMEDY,
        ) from error


def close() -> None:
    """Close this process's idle connections and forget its pages."""
    with _pages_lock:
        _pages.clear()
    with _sessions_lock:
        for session in list(_sessions):
            session.close()


def _endpoint() -> str:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    url = os.environ.get("PIP_INDEX_URL", "")
    return url if url.startswith(("https://", "http://")) else PYPI_SIMPLE_ENDPOINT


def _session() -> "Session":
    """Return this thread's session, which reuses one connection for many requests."""
    if not hasattr(_local, "session"):
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        retries = Retry(
            total=3,
            backoff_factor=0.3,
            status_forcelist=(429, 502, 503, 504),
            raise_on_status=False,
        )
        _local.session = Session()
        for scheme in ("https://", "http://"):
            _local.session.mount(scheme, HTTPAdapter(max_retries=retries))
        with _sessions_lock:
            _sessions.add(_local.session)
    session: Session = _local.session
    return session


def _read_page(endpoint: str, package: str) -> "ProjectPage":
    from pypi_simple import ACCEPT_JSON_PREFERRED, ProjectPage
    from pypi_simple.errors import UnsupportedRepoVersionError

    label, url = f"the package {package}", f"{endpoint.rstrip('/')}/{package}/"
    with open_url(url, label, {"Accept": ACCEPT_JSON_PREFERRED}) as response:
        raw = meter.read(response, PAGE_LIMIT + 1)
        content_type = response.headers.get("Content-Type", "")
        base = response.url
    try:
        if len(raw) > PAGE_LIMIT:
            raise ValueError("it is too long")  # noqa: TRY301 (one refusal for all malformed pages)
        if "json" in content_type:
            import json

            return ProjectPage.from_json_data(json.loads(raw), base)
        return ProjectPage.from_html(package, raw, base_url=base)
    except (
        ValueError, KeyError, TypeError, RecursionError, UnsupportedRepoVersionError,
    ) as error:  # fmt: skip
        raise SourceError(
            f"{label} has no page of the simple repository form ({type(error).__name__})",
            remedy="Check PIP_INDEX_URL",
        ) from error


def _by_version(package: str, page: "ProjectPage") -> dict[str, list[Artefact]]:
    from packaging.version import InvalidVersion, Version

    artefacts: defaultdict[Version, list[Artefact]] = defaultdict(list)
    for file in page.packages:
        try:
            version = Version(file.version or "")
        except InvalidVersion:
            continue
        kind = KINDS.get(file.package_type or "")
        sha256 = file.digests.get("sha256", "").lower()
        if kind and sha256:
            artefacts[version].append(
                Artefact(
                    package=package,
                    version=str(version),
                    filename=file.filename,
                    kind=kind,
                    sha256=sha256,
                    url=file.url,
                    yanked=file.is_yanked,
                )
            )
    return {
        str(version): sorted(files, key=lambda file: file.filename)
        for version, files in sorted(artefacts.items())
    }
