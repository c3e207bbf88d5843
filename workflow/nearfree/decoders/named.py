"""Decoders by name: the files under config/models/, or any other config.json by its path."""

import re
from difflib import get_close_matches
from pathlib import Path

from nearfree.core.setting import NAME
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.errors import ConfigError


def decoder_names(config_folder: Path) -> list[str]:
    """Return the names of the decoders under a config folder's models/, sorted."""
    found = (config_folder / "models").glob("*.json")
    return sorted(path.stem for path in found if re.fullmatch(NAME, path.stem))


def find_decoder(config_folder: Path, given: str) -> Decoder:
    """Return a decoder by its name or path; ConfigError as `find_file` and `read_decoder` do."""
    return read_decoder(find_file(config_folder, given))


def find_file(config_folder: Path, given: str) -> Path:
    """Return the file of a model by its name, or the file or folder that is given.

    Parameters
    ----------
    config_folder
        The folder whose models/ holds the named files.
    given
        A name, in which case does not matter and `-` and `.` are `_`, such as Qwen3-8B; or a path.

    Raises
    ------
    ConfigError
        It is neither, with the nearest names.
    """
    names = decoder_names(config_folder)
    plain = re.sub(r"[-.]", "_", given.lower())
    if plain in names:
        return config_folder / "models" / f"{plain}.json"
    if _exists(given):
        return Path(given)
    near = get_close_matches(plain.rpartition("/")[2][:80], names, n=3)
    known = f"Nearest are {', '.join(near)}" if near else f"Known are {', '.join(names) or 'none'}"
    raise ConfigError(
        f"no model {given!r:.120}: neither a name in {config_folder}/models nor a file",
        remedy=f"{known}; or give the path of a config.json",
    )


def _exists(given: str) -> bool:
    try:
        return Path(given).exists()
    except (OSError, ValueError):  # no system has such a name
        return False
