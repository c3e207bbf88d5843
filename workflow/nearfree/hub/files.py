"""The config files of a Hugging Face Hub repository, from the local cache or fetched.

No other files are fetched, neither code nor weights. Fetched files are stored in Hugging Face's own
cache, so that later calls need no network.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import NoReturn

from nearfree.decoders.keys import SIZE_LIMIT
from nearfree.decoders.precision import CONFIG_FILES
from nearfree.decoders.snapshots import COMMIT, snapshot_of
from nearfree.errors import ConfigError, NearfreeError, printable

CONFIG = CONFIG_FILES[0]
Held = Mapping[str, str | None]
"""The path of each file in the cache: "" if the repository lacks it, None if that is unknown."""
PATIENCE_S = 40.0
"""Time limit for fetching all files together, in seconds."""
_ABBREVIATED = 7
"""The smallest number of hex digits of an abbreviated commit."""


def config_of_id(repository: str, revision: str) -> Path:
    """Return the config.json of a repository in Hugging Face's cache, after fetching its files.

    The hub is not contacted for a revision that is complete in the cache: then it is known for each
    config file whether the repository has it.

    Parameters
    ----------
    repository
        ORG/NAME.
    revision
        A branch, a tag or a commit, or the first digits of a commit in the cache.

    Raises
    ------
    ConfigError
        huggingface_hub is not installed; the repository, revision or config.json does not exist or
        cannot be fetched; a file is too large; or a cached file leads out of the cache.
    """
    _quieten(repository)
    cached: Held = dict.fromkeys(CONFIG_FILES)
    try:
        revision = _full_commit(repository, revision)
        cached = _cached_files(repository, revision)
        if None in cached.values():
            config = cached[CONFIG]
            target = Path(config).parent.name if config else revision
            commit = within(PATIENCE_S, partial(_fetch, repository, target, cached))
            cached = _cached_files(repository, commit)
    except NearfreeError:
        raise
    except Exception as error:  # noqa: BLE001 (the library's exceptions are not all documented)
        _refuse(repository, revision, cached, error)
    if not cached[CONFIG]:
        raise _without_config(repository, revision)
    return _checked_config(cached)


def _quieten(repository: str) -> None:
    """Switch the library's telemetry and logging off; ConfigError if it is not installed."""
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import logging as hub_logging
    except ImportError as error:
        raise ConfigError(
            f"{repository} is a Hugging Face id, and huggingface_hub is not installed",
            remedy='Run pip install "nearfree[hub]", or give the path of its config.json',
        ) from error
    hub_logging.set_verbosity(logging.CRITICAL)
    constants.HF_HUB_DISABLE_TELEMETRY = True


def _full_commit(repository: str, revision: str) -> str:
    """Return the only cached commit that begins with the given digits, else the revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    is_commit = len(revision) >= _ABBREVIATED and set(revision) <= set("0123456789abcdef")
    if not is_commit or COMMIT.fullmatch(revision):
        return revision
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    snapshots = Path(constants.HF_HUB_CACHE) / folder / "snapshots"
    commits = [path.name for path in snapshots.glob(f"{revision}*") if COMMIT.fullmatch(path.name)]
    return commits[0] if len(commits) == 1 else revision


def _cached_files(repository: str, revision: str) -> Held:
    """Return the path of each config file in the cache, "" if absent there, None if unknown."""
    from huggingface_hub import try_to_load_from_cache

    cached: dict[str, str | None] = {}
    for name in CONFIG_FILES:
        path = try_to_load_from_cache(repository, name, revision=revision)
        cached[name] = path if isinstance(path, str) or path is None else ""
    return cached


def _fetch(repository: str, revision: str, cached: Held) -> str:
    """Fetch the config files whose presence is unknown; return the commit."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    url = hf_hub_url(repository, CONFIG, revision=revision)
    patience_s = constants.HF_HUB_ETAG_TIMEOUT
    try:  # one request without retries: downloads would retry for a minute
        commit = get_hf_file_metadata(url, timeout=patience_s).commit_hash
    except RemoteEntryNotFoundError as error:
        raise _without_config(repository, revision) from error
    if not commit or not COMMIT.fullmatch(commit):
        raise ConfigError(
            f"the server at {_endpoint()} is no Hugging Face Hub: it names no commit",
            remedy="Check the network, a proxy, and HF_ENDPOINT if it is set",
        )
    for name in (name for name in CONFIG_FILES if cached[name] is None):
        try:
            file_revision = revision if name == CONFIG else commit
            path = hf_hub_download(
                repository, name, revision=file_revision, tqdm_class=bounded(name)
            )
        except RemoteEntryNotFoundError:
            continue
        if name == CONFIG:
            commit = Path(path).parent.name
    return commit


def _checked_config(cached: Held) -> Path:
    """Return the path of the config.json; ConfigError if a file leads out of the cache."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).resolve()
    for path in filter(None, cached.values()):
        if not Path(path).resolve().is_relative_to(cache) or snapshot_of(Path(path)) is None:
            raise ConfigError(
                printable(f"{path} leads out of Hugging Face's cache"),
                remedy="Give its folder as --model if that is meant, or remove it and try again",
            )
    return Path(str(cached[CONFIG]))


def within(seconds: float, work: Callable[[], str]) -> str:
    """Return the result of `work`; TimeoutError after `seconds`, however slowly a server sends."""
    done = Future[str]()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 (`result` raises it)
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return done.result(timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds:g} seconds") from error


def bounded(name: str) -> type:
    """Return a progress-bar class that aborts the download of a file above SIZE_LIMIT."""

    class Bounded(AbstractContextManager[object]):
        def __init__(self, *, total: int | None = None, **_: object) -> None:
            self._size = 0
            self._check(total or 0)

        def update(self, size: int = 0) -> None:
            self._size += size
            self._check(self._size)

        def _check(self, size: int) -> None:
            if size > SIZE_LIMIT:
                raise ConfigError(
                    f"{name} has {size} bytes or more, and the limit is {SIZE_LIMIT}",
                    remedy="Name another repository: published files have three million at most",
                )

        def __exit__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

    return Bounded


def _without_config(repository: str, revision: str) -> ConfigError:
    """Return the error that a repository exists but has no config.json."""
    return ConfigError(
        f"{repository} has no config.json at {revision}",
        remedy="Name a repository that has one, or give the path of a GGUF file",
    )


def _endpoint() -> str:
    """Return the address of the hub."""
    from huggingface_hub import constants

    return printable(f"{constants.ENDPOINT:.200}")


def _refuse(repository: str, revision: str, cached: Held, error: Exception) -> NoReturn:
    """Raise ConfigError with the reason why a repository's files cannot be fetched."""
    from huggingface_hub import errors

    page = f"{_endpoint()}/{repository}"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.RevisionNotFoundError):
        raise ConfigError(
            f"{repository} has no revision {revision}",
            remedy="Name one of its branches or tags, or a full commit",
        ) from error
    if isinstance(error, errors.GatedRepoError) or status == 403:
        raise ConfigError(
            f"{repository} is gated, and this account has no access",
            remedy=f"Request access at {page}, and log in with `hf auth login`",
        ) from error
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        raise ConfigError(
            f"{repository} is not on {_endpoint()}, or is private",
            remedy="Correct the id, or log in with `hf auth login`",
        ) from error
    if status is not None:
        raise ConfigError(
            f"{_endpoint()} answered {status} for {repository}",
            remedy=_offline_remedy(page, cached),
        ) from error
    why = printable(str(error).strip().partition("\n")[0].rstrip(".")) or type(error).__name__
    if isinstance(error, errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set"
    raise ConfigError(
        f"{_missing_files(cached)} of {repository} at {revision} cannot be fetched: {why:.300}",
        remedy=_offline_remedy(page, cached),
    ) from error


def _missing_files(cached: Held) -> str:
    """Return the names of the files that the cache lacks."""
    missing = [name for name, path in cached.items() if path is None]
    return ", ".join(missing) if len(missing) < len(cached) else "the config files"


def _offline_remedy(page: str, cached: Held) -> str:
    """Return the remedy that works without a network."""
    config = cached[CONFIG]
    if config:
        return (
            "Run it once with a network; or, if the repository has no such file, give the folder "
            f"{Path(config).parent}"
        )
    return (
        f"Run it once with a network; or copy config.json, and {CONFIG_FILES[1]} if there is one, "
        f"from {page} into a folder NAME, and give --model NAME"
    )
