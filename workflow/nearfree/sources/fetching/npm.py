"""npm packages: the wanted files of a release, read like an sdist's; nothing of them is run.

A page gives each release's archive and its SHA-512; nothing is stored unless the complete archive
has it. Records and the cache name such a package `npm:` and its name.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import cast
from urllib.parse import quote, urljoin

from nearfree.errors import SourceError
from nearfree.log.events import SourceFetched
from nearfree.sources.fetching.cache import (
    Cache,
    Source,
    cached_source,
    member_records,
    missing_file_error,
)
from nearfree.sources.fetching.index import PAGE_LIMIT, Artefact, meter, open_url
from nearfree.sources.fetching.members import refusal
from nearfree.sources.fetching.sdist import read_packed

REGISTRY = "https://registry.npmjs.org"
SETTING = "npm_config_registry"
"""npm's own variable, which names another registry."""
_PART = r"[a-z0-9~-][a-z0-9._~-]{0,213}"
_NAME = re.compile(rf"(?:@{_PART}/)?{_PART}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,64}")


def fetch_npm(
    name: str,
    version: str,
    wanted: str,
    *,
    cache: Cache,
    offline: bool = False,
    limit: int | None = None,
) -> Source:
    """Return the files of an npm package whose path fully matches a pattern.

    The cache comes first. Else the release's archive is read as a stream.

    Parameters
    ----------
    name, version
        The release, in npm's spelling: `@scope/name`, `1.2.3`.
    wanted
        A regular expression over paths, which start below the archive's top folder, `package/`.
    limit
        Limit of one file in bytes, if it may exceed `members.MEMBER_LIMIT`.

    Raises
    ------
    SourceError
        There is no such release, it has no such file, or its content fails a check.
    """
    _check(name, version)
    package = f"npm:{name}"
    source = cached_source(package, version, wanted, cache, offline=offline)
    if source is not None:
        return source
    artefact, sha512 = _artefact(name, version)
    files, digests = read_packed(
        artefact, re.compile(wanted), hashes=("sha256", "sha512"), limit=limit, setting=SETTING
    )
    if digests["sha512"] != sha512:
        raise refusal(artefact, "its SHA-512 is not the one that the registry says")
    if not files:
        raise missing_file_error(package, version, wanted)
    record = SourceFetched(
        package=package,
        version=version,
        artefact=artefact.filename,
        artefact_sha256=digests["sha256"].hex(),
        verified="artefact",
        members=member_records(files),
    )
    return cache.keep(wanted, record, files)


def _check(name: str, version: str) -> None:
    if not _NAME.fullmatch(name):
        raise SourceError(f"{name!r} is no name of an npm package", remedy="Give one like @a/b")
    if not _VERSION.fullmatch(version):
        raise SourceError(f"{version!r} is no version of npm:{name}", remedy="Give one like 1.2.3")


def _artefact(name: str, version: str) -> tuple[Artefact, bytes]:
    """Return a release's archive and its SHA-512, from the registry's page."""
    package = f"npm:{name}"
    versions, base = _versions(name)
    if version not in versions:
        newest = list(versions)[-3:]
        raise SourceError(
            f"{package} has no version {version}",
            remedy=f"The last that are listed: {', '.join(newest) or 'none'}",
        )
    try:
        dist = cast("Mapping[str, object]", versions[version])["dist"]
        url, integrity = (cast("Mapping[str, str]", dist)[key] for key in ("tarball", "integrity"))
        url = urljoin(base, url) if url else ""
        hashes = [part for part in integrity.split() if part.startswith("sha512-")]
        (sha512,) = (base64.b64decode(encoded[7:], validate=True) for encoded in hashes)
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _malformed_page(package, type(error).__name__) from error
    if len(sha512) != 64 or not url.startswith(("https://", "http://")):
        raise _malformed_page(package, "an archive without a SHA-512 or a URL")
    filename = f"{name.rpartition('/')[2]}-{version}.tgz"
    artefact = Artefact(
        package=package,
        version=version,
        filename=filename,
        kind="npm",
        sha256="",
        url=url,
        yanked=False,
    )
    return artefact, sha512


def _versions(name: str) -> tuple[dict[str, object], str]:
    """Return the registry's entry of each version, and the page's URL."""
    import json

    configured = os.environ.get(SETTING, "")
    registry = configured if configured.startswith(("https://", "http://")) else REGISTRY
    label = f"the package npm:{name}"
    url = f"{registry.rstrip('/')}/{quote(name, safe='@')}"
    with open_url(url, label, {"Accept": "application/json"}, setting=SETTING) as response:
        raw = meter.read(response, PAGE_LIMIT + 1)
        base = response.url
    try:
        if len(raw) > PAGE_LIMIT:
            raise ValueError("it is too long")  # noqa: TRY301 (one refusal for all malformed pages)
        versions = json.loads(raw)["versions"]
        return dict(versions.items()), base
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed_page(f"npm:{name}", type(error).__name__) from error


def _malformed_page(package: str, reason: str) -> SourceError:
    return SourceError(
        f"the package {package} has no page of the known form ({reason})",
        remedy=f"Check {SETTING}",
    )
