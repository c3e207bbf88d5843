"""The config files of a repository of the Hugging Face Hub: from its local cache, or fetched.

No other file is asked for: neither code nor weights. What is fetched lies in Hugging Face's own
cache, where it is found without a network.
"""

import logging
from functools import partial
from pathlib import Path

from nearfree.decoders.precision import FILES
from nearfree.decoders.snapshots import COMMIT, snapshot_of
from nearfree.errors import ConfigError, NearfreeError, printable
from nearfree.hub.bounds import bounded, within
from nearfree.hub.refused import CONFIG, Held, endpoint, refuse, without_config

PATIENCE_S = 40.0
"""Seconds that fetching may take, all files together."""
_LEAST_SHORT = 7
"""Hex digits of a commit that are taken for a short one, as titles have it."""


def config_of_id(repository: str, revision: str) -> Path:
    """Return the config.json of a repository in Hugging Face's cache, the files beside it fetched.

    A revision that the cache holds whole is not asked of the hub again. Of every file that the
    reader knows it is then known whether the repository has it.

    Parameters
    ----------
    revision
        A branch, a tag or a commit; the first digits of one in the cache do, too.

    Raises
    ------
    ConfigError
        huggingface_hub is not installed; the repository, revision or config.json is not there or
        not to be had; a file is too large; or one in the cache lies elsewhere.
    """
    _quieten(repository)
    held: Held = dict.fromkeys(FILES)
    try:
        revision = _whole(repository, revision)
        held = _held(repository, revision)
        if None in held.values():
            config = held[CONFIG]
            known = Path(config).parent.name if config else revision
            commit = within(PATIENCE_S, partial(_fetch, repository, known, held))
            held = _held(repository, commit)
    except NearfreeError:
        raise
    except Exception as error:  # noqa: BLE001 (what a library raises is not all listed)
        refuse(repository, revision, held, error)
    if not held[CONFIG]:
        raise without_config(repository, revision)
    return _inside(held)


def _quieten(repository: str) -> None:
    """Let the library ask for files alone, and leave errors to us; ConfigError without it."""
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import logging as told
    except ImportError as error:
        raise ConfigError(
            f"{repository} is a Hugging Face id, and huggingface_hub is not installed",
            remedy='Run pip install "nearfree[hub]", or give the path of its config.json',
        ) from error
    told.set_verbosity(logging.CRITICAL)
    constants.HF_HUB_DISABLE_TELEMETRY = True


def _whole(repository: str, revision: str) -> str:
    """Return the commit in the cache that some first digits are of; else what is given."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    digits = len(revision) >= _LEAST_SHORT and set(revision) <= set("0123456789abcdef")
    if not digits or COMMIT.fullmatch(revision):
        return revision
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    snapshots = Path(constants.HF_HUB_CACHE) / folder / "snapshots"
    found = [each.name for each in snapshots.glob(f"{revision}*") if COMMIT.fullmatch(each.name)]
    return found[0] if len(found) == 1 else revision


def _held(repository: str, revision: str) -> Held:
    from huggingface_hub import try_to_load_from_cache

    found = {each: try_to_load_from_cache(repository, each, revision=revision) for each in FILES}
    return {
        name: at if isinstance(at, str) else None if at is None else ""
        for name, at in found.items()
    }


def _fetch(repository: str, revision: str, held: Held) -> str:
    """Fetch what is not known to be held; return the commit."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    url = hf_hub_url(repository, CONFIG, revision=revision)
    patience_s = constants.HF_HUB_ETAG_TIMEOUT
    try:  # the first question is asked once: what fetches would ask for a minute
        commit = get_hf_file_metadata(url, timeout=patience_s).commit_hash
    except RemoteEntryNotFoundError as error:
        raise without_config(repository, revision) from error
    if not commit or not COMMIT.fullmatch(commit):
        raise ConfigError(
            f"what answers at {endpoint()} is no Hugging Face Hub: it names no commit",
            remedy="Check the network, a proxy, and HF_ENDPOINT if it is set",
        )
    for name in (each for each in FILES if held[each] is None):
        try:
            at = revision if name == CONFIG else commit
            path = hf_hub_download(repository, name, revision=at, tqdm_class=bounded(name))
        except RemoteEntryNotFoundError:
            continue
        if name == CONFIG:
            commit = Path(path).parent.name
    return commit


def _inside(held: Held) -> Path:
    """Return the config.json; ConfigError if a file of it leads out of the cache."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).resolve()
    for path in filter(None, held.values()):
        if not Path(path).resolve().is_relative_to(cache) or snapshot_of(Path(path)) is None:
            raise ConfigError(
                printable(f"{path} leads out of Hugging Face's cache"),
                remedy="Give its folder as --model if that is meant, or remove it and ask again",
            )
    return Path(str(held[CONFIG]))
