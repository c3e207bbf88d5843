"""Error messages for repositories whose files cannot be fetched."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from nearfree.decoders.precision import CONFIG_FILES
from nearfree.errors import ConfigError, printable

CONFIG = CONFIG_FILES[0]
Held = Mapping[str, str | None]
"""The path of each file in the cache: "" if the repository lacks it, None if that is unknown."""


def without_config(repository: str, revision: str) -> ConfigError:
    """Return the error that a repository exists but has no config.json."""
    return ConfigError(
        f"{repository} has no config.json at {revision}",
        remedy="Name a repository that has one, or give the path of a GGUF file",
    )


def endpoint() -> str:
    """Return the address of the hub."""
    from huggingface_hub import constants

    return printable(f"{constants.ENDPOINT:.200}")


def refuse(repository: str, revision: str, cached: Held, error: Exception) -> NoReturn:
    """Raise ConfigError with the reason why a repository's files cannot be fetched."""
    from huggingface_hub import errors

    page = f"{endpoint()}/{repository}"
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
            f"{repository} is not on {endpoint()}, or is private",
            remedy="Correct the id, or log in with `hf auth login`",
        ) from error
    if status is not None:
        raise ConfigError(
            f"{endpoint()} answered {status} for {repository}", remedy=_offline_remedy(page, cached)
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
