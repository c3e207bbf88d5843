"""YAML files as typed structs; an error names the file and the field."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from nearfree.core.names import NAME
from nearfree.errors import ConfigError

T = TypeVar("T")
SIZE_LIMIT = 1 << 20
"""Size limit of a file, in bytes."""
_DEEPEST = 50
_MOST_KEYS = 10_000
"""Limit on the keys of a mapping after merges: merges of merges can double them line by line."""
_MISPLACED = re.compile(r" - at `(?:key` in `)?\$?(.*?)`$")


def read_file(path: Path, kind: type[T]) -> T:
    """Return a YAML file as one struct; ConfigError names the file and the wrong field."""
    return convert(path, load(path), kind)


def read_entries(path: Path, kind: type[T]) -> dict[str, T]:
    """Return a YAML file that maps names to structs; ConfigError names entry and field."""
    return entries(path, load(path), kind)


def entries(path: Path, document: object, kind: type[T], prefix: str = "") -> dict[str, T]:
    """Return a mapping of names to structs; each is converted separately so that errors name it."""
    if not isinstance(document, dict):
        # A list is not printed: with aliases a few lines can expand to any number of entries.
        shown = "a list" if isinstance(document, list) else f"{document!r:.60}"
        raise _wrong(path, prefix or "the file", f"expected names, got {shown}")
    converted = {}
    for name, value in document.items():
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise _wrong(
                path, prefix or "the file", f"{name!r:.80} is no name of a-z, 0-9 and underscores"
            )
        converted[name] = convert(path, value, kind, f"{prefix}.{name}" if prefix else name)
    return converted


def convert(path: Path, value: object, kind: type[T], prefix: str = "") -> T:
    """Return one value of a file converted to its type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        match = _MISPLACED.search(str(error))
        field = ".".join(part for part in (prefix, match[1].strip(".") if match else "") if part)
        message = str(error)[: match.start()] if match else str(error)
        raise _wrong(path, field or "the file", f"{message[0].lower()}{message[1:]}") from error


def load(path: Path) -> Any:
    """Return a YAML file's content, an empty mapping for an empty file."""
    if path.is_fifo():  # opening it would wait for a writer
        raise ConfigError(f"{path} is no file", remedy="Put a plain file in its place")
    try:
        with path.open("rb") as file:
            encoded = file.read(SIZE_LIMIT + 1)
        if len(encoded) > SIZE_LIMIT:
            raise ValueError(f"it has more than {SIZE_LIMIT} bytes")  # noqa: TRY301
        text = encoded.decode()
        _check_depth(text)
        raw = yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        remedy = (
            "Restore it from the repository"
            if path.parent.is_dir()
            else f"There is no folder {path.parent}: work in a clone, or name its config folder"
        )
        raise ConfigError(f"{path} cannot be read: {error.strerror}", remedy=remedy) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{path} is not YAML: {text}", remedy="Mend that line") from error
    return {} if raw is None else raw


def _check_depth(text: str) -> None:
    """Refuse deeply nested files, on which libyaml's composer would overflow the stack."""
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {_DEEPEST} deep")


def _wrong(path: Path, field: str, what: str) -> ConfigError:
    schema = path.parent / "schema" / f"{path.stem}.json"
    return ConfigError(f"{path}: {field}: {what}", remedy=f"Compare with {schema}")


class _Loader(yaml.CSafeLoader):
    """The safe loader, which also refuses a key that occurs twice in one mapping.

    A mapping's own keys override those that `<<` merges in, as YAML specifies. A scalar that does
    not fit its tag, such as `!!timestamp today`, is an error that names its line.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            if not isinstance(node, yaml.ScalarNode):
                raise
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.60} does not fit its tag {node.tag}", node.start_mark
            ) from error

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_KEYS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a mapping has more than {_MOST_KEYS} keys", node.start_mark
            )

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = set()
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        own = [key for key, _ in pairs if key.tag != "tag:yaml.org,2002:merge"]
        for key in own:
            value = self.construct_object(key, deep=True)
            if value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {value!r} stands twice", key.start_mark
                )
            keys.add(value)
        return super().construct_mapping(node, deep)
