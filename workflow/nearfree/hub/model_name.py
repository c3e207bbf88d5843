"""Resolves a model's name on the command line: a configured name, a path, or a Hugging Face id."""

import re
from pathlib import Path

from nearfree.decoders.config_file import find_file
from nearfree.decoders.snapshots import REPOSITORY
from nearfree.errors import ConfigError, printable

_REVISION = re.compile(r"(?=.{1,200}\Z)(?!.*(?:\.\.|//))[A-Za-z0-9_](?:[\w./-]*\w)?", re.ASCII)
_FILES = (".json", ".gguf")


def resolve_model(config_folder: Path, model: str) -> str:
    """Return a name or path unchanged, or for a Hugging Face id the path of its config.json.

    A name under config/models has priority over a path, and an existing path over an id. Studies
    and deployments of a config may not name ids, because a ledger could not reproduce them.

    Parameters
    ----------
    model
        A name, a path, or ORG/NAME or ORG/NAME@REVISION; a revision is a branch, a tag or a commit.

    Raises
    ------
    ConfigError
        It is none of these; or the id's files are not in Hugging Face's local cache and cannot be
        fetched, with the reason.
    """
    try:
        find_file(config_folder, model)
    except ConfigError as error:
        repository, separator, revision = model.partition("@")
        if not REPOSITORY.fullmatch(repository) or model.lower().endswith(_FILES):
            remedy = f"{error.remedy}; or a Hugging Face id, ORG/NAME or ORG/NAME@REVISION"
            raise ConfigError(printable(error.what), remedy=remedy) from error
        if separator and not _REVISION.fullmatch(revision):
            raise ConfigError(
                printable(f"{revision!r:.120} is no revision of {repository}"),
                remedy="Name a branch, a tag or a commit",
            ) from error
        from nearfree.hub.files import config_of_id

        return str(config_of_id(repository, revision or "main"))
    return model
