"""A model as a question names it: a name of ours, a path, or a Hugging Face id."""

import re
from pathlib import Path

from nearfree.decoders.config_file import find_file
from nearfree.decoders.snapshots import REPOSITORY
from nearfree.errors import ConfigError, printable

_REVISION = re.compile(r"(?=.{1,200}\Z)(?!.*(?:\.\.|//))[A-Za-z0-9_](?:[\w./-]*\w)?", re.ASCII)
_FILES = (".json", ".gguf")


def asked_model(config_folder: Path, model: str) -> str:
    """Return a model as files name it: what is given, or the path of its id's config.json.

    A name under config/models comes before a path, and a path that is there before an id. Studies
    and deployments of a config do not come here: they name what a ledger can keep.

    Parameters
    ----------
    config_folder
        The folder whose models/ holds the named files.
    model
        A name, a path, or ORG/NAME or ORG/NAME@REVISION; a revision is a branch, a tag or a commit.

    Raises
    ------
    ConfigError
        It is none of these; or the id's files are neither in Hugging Face's local cache nor to be
        had, and why.
    """
    try:
        find_file(config_folder, model)
    except ConfigError as error:
        repository, at, revision = model.partition("@")
        if not REPOSITORY.fullmatch(repository) or model.lower().endswith(_FILES):
            remedy = f"{error.remedy}; or a Hugging Face id, ORG/NAME or ORG/NAME@REVISION"
            raise ConfigError(printable(error.what), remedy=remedy) from error
        if at and not _REVISION.fullmatch(revision):
            raise ConfigError(
                printable(f"{revision!r:.120} is no revision of {repository}"),
                remedy="Name a branch, a tag or a commit",
            ) from error
        from nearfree.hub.files import config_of_id

        return str(config_of_id(repository, revision or "main"))
    return model
