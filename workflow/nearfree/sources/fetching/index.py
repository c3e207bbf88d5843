"""The package index: which artefacts a package has, and the one way to read from the network."""

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
"""Seconds to connect, and seconds without a byte, before a request is given up."""
PAGE_LIMIT = 64 * 2**20
"""Bytes of the largest index page."""
HERE = "Check the network and try again; what the cache holds is there with --offline"
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
        """Return the next `size` bytes of a response as they were sent, fewer at its end alone.

        A server that compresses once more for the way is not followed: hashes are of the file.
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

    A page is read once a process. PIP_INDEX_URL names another index.

    Raises
    ------
    SourceError
        The index does not know the package, or is not to be had.
    """
    from packaging.utils import canonicalize_name

    where = (_endpoint(), canonicalize_name(package))
    with _pages_lock:
        page_lock = _page_locks[where]
    with page_lock:
        if where not in _pages:
            _pages[where] = _by_version(where[1], _read_page(*where))
        return dict(_pages[where])


@contextmanager
def reading(
    url: str,
    what: str,
    headers: dict[str, str] | None = None,
    *,
    setting: str = "PIP_INDEX_URL",
) -> Iterator["Response"]:
    """Open a URL to be read through `meter`; every fault of the network becomes a SourceError.

    Messages name `what`, never the URL, which may hold a password; `setting` is the variable that
    names another index.
    """
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    plain = {"Accept-Encoding": "identity"}
    try:
        with _session().get(
            url, headers=plain | (headers or {}), stream=True, timeout=TIMEOUT_S
        ) as response:
            if response.status_code == 404:
                raise SourceError(
                    f"{what} is unknown to the package index",
                    remedy=f"Check its spelling, and {setting} if that is set",
                )
            if not response.ok:
                raise SourceError(
                    f"{what} is not to be had: the server answers {response.status_code}",
                    remedy=HERE,
                )
            yield response
    except (RequestException, HTTPError) as error:
        raise SourceError(
            f"{what} is not to be had: the connection failed ({type(error).__name__})", remedy=HERE
        ) from error


def close() -> None:
    """Close this process's idle connections and forget the pages that it read."""
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
    """Return this thread's session: one connection serves many requests."""
    if not hasattr(_local, "session"):
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        again = Retry(
            total=3,
            backoff_factor=0.3,
            status_forcelist=(429, 502, 503, 504),
            raise_on_status=False,
        )
        _local.session = Session()
        for scheme in ("https://", "http://"):
            _local.session.mount(scheme, HTTPAdapter(max_retries=again))
        with _sessions_lock:
            _sessions.add(_local.session)
    found: Session = _local.session
    return found


def _read_page(endpoint: str, package: str) -> "ProjectPage":
    from pypi_simple import ACCEPT_JSON_PREFERRED, ProjectPage
    from pypi_simple.errors import UnsupportedRepoVersionError

    what, url = f"the package {package}", f"{endpoint.rstrip('/')}/{package}/"
    with reading(url, what, {"Accept": ACCEPT_JSON_PREFERRED}) as response:
        raw = meter.read(response, PAGE_LIMIT + 1)
        kind = response.headers.get("Content-Type", "")
        base = response.url
    try:
        if len(raw) > PAGE_LIMIT:
            raise ValueError("it is too long")  # noqa: TRY301 (one refusal for all odd pages)
        if "json" in kind:
            import json

            return ProjectPage.from_json_data(json.loads(raw), base)
        return ProjectPage.from_html(package, raw, base_url=base)
    except (
        ValueError, KeyError, TypeError, RecursionError, UnsupportedRepoVersionError,
    ) as error:  # fmt: skip
        raise SourceError(
            f"{what} has no page of the simple repository form ({type(error).__name__})",
            remedy="Check PIP_INDEX_URL",
        ) from error


def _by_version(package: str, page: "ProjectPage") -> dict[str, list[Artefact]]:
    from packaging.version import InvalidVersion, Version

    found: defaultdict[Version, list[Artefact]] = defaultdict(list)
    for file in page.packages:
        try:
            version = Version(file.version or "")
        except InvalidVersion:
            continue
        kind = KINDS.get(file.package_type or "")
        sha256 = file.digests.get("sha256", "").lower()
        if kind and sha256:
            found[version].append(
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
    by_name = {v: sorted(files, key=lambda file: file.filename) for v, files in found.items()}
    return {str(version): by_name[version] for version in sorted(by_name)}
