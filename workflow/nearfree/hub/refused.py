"""What stands between a question and a repository's files, in words."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from nearfree.decoders.precision import FILES
from nearfree.errors import ConfigError, printable

CONFIG = FILES[0]
Held = Mapping[str, str | None]
"""The path of each file in the cache, empty where the repository has none, None if unknown."""


def without_config(repository: str, revision: str) -> ConfigError:
    """Return the error that a repository is there, and has no config.json."""
    return ConfigError(
        f"{repository} has no config.json at {revision}",
        remedy="Name a repository that has one, or give the path of a GGUF file",
    )


def endpoint() -> str:
    """Return the address of the hub that is asked."""
    from huggingface_hub import constants

    return printable(f"{constants.ENDPOINT:.200}")


def refuse(repository: str, revision: str, held: Held, error: Exception) -> NoReturn:
    """Raise ConfigError with what stands between a question and a repository's files."""
    from huggingface_hub import errors

    page = f"{endpoint()}/{repository}"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.RevisionNotFoundError):
        raise ConfigError(
            f"{repository} has no revision {revision}",
            remedy="Name a branch, a tag or a whole commit of it",
        ) from error
    if isinstance(error, errors.GatedRepoError) or status == 403:
        raise ConfigError(
            f"{repository} is gated, and not open to this account",
            remedy=f"Ask for access at {page}, and log in with `hf auth login`",
        ) from error
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        raise ConfigError(
            f"{repository} is not on {endpoint()}, or is private",
            remedy="Mend the id, or log in with `hf auth login`",
        ) from error
    if status is not None:
        raise ConfigError(
            f"{endpoint()} answered {status} for {repository}", remedy=_copy(page, held)
        ) from error
    why = printable(str(error).strip().partition("\n")[0].rstrip(".")) or type(error).__name__
    if isinstance(error, errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set"
    raise ConfigError(
        f"{_lacking(held)} of {repository} at {revision} cannot be fetched: {why:.300}",
        remedy=_copy(page, held),
    ) from error


def _lacking(held: Held) -> str:
    """Return what the cache lacks."""
    lacking = [name for name, path in held.items() if path is None]
    return ", ".join(lacking) if len(lacking) < len(held) else "the config files"


def _copy(page: str, held: Held) -> str:
    """Return what does without a network."""
    config = held[CONFIG]
    if config:
        return (
            "Ask once with a network; or, if the repository has no such file, give the folder "
            f"{Path(config).parent}"
        )
    return (
        f"Ask once with a network; or copy config.json, and {FILES[1]} if there is one, from "
        f"{page} into a folder NAME, and give --model NAME"
    )
