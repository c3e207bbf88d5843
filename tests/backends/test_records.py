"""Backends are declared in one place, and nowhere else."""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import nearfree
import pytest
import yaml
from nearfree.backends.named_kernels import WORDS
from nearfree.backends.record import Backend
from nearfree.backends.records import BACKENDS, BY_NAME, load
from nearfree.sources.fetching.fetch import PARTS
from nearfree.sources.packages import reader

ROOT = Path(__file__).parents[2]
PACKAGE = Path(nearfree.__file__).parent
PRINTED = [name for backend in BACKENDS for name in backend.printed]
NAMES = {name for backend in BACKENDS for name in (backend.name, *backend.names)} | {*PRINTED}
UNLISTED_MOST = 2
"""Backends that a file may name at once without listing them."""
OTHER_NAMES = {"torch", "trtllm", "tensorrt-llm", "trtllm_mla", "trtllm-mla"}
"""Torch, and an engine of which no rules are read."""
LISTING_FILES = {
    "backends/records.py": "the records",
    "backends/attention_order.py": "what runs attention where nobody says it",
    "backends/decode_kernels.py": "by what a backend decodes, in public tables",
    "sources/binaries/record.py": "packages whose binaries hold attention, and their rules",
    "sources/fetching/fetch.py": "what is read from another package's releases",
    "core/modules/attention.py": "M_attn as the paper's tables print it",
    "public/published.py": "the paper's tables, transcribed",
    "derive/outlook/trend.py": "releases whose M_attn a figure shows",
    "derive/outlook/lookup.py": "the layers that the paper prints a lookup table of",
}
each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


def test_a_name_means_one_backend() -> None:
    """No two backends share a name, a name that users write, or one of the paper's tables."""
    for names in (
        [backend.name for backend in BACKENDS],
        [name for backend in BACKENDS for name in backend.names],
        [*(backend.name for backend in BACKENDS), *PRINTED],
    ):
        assert len(set(names)) == len(names)


@each_backend
def test_everything_that_a_record_names_exists(backend: Backend) -> None:
    """Its classes, the lock of its environment and the reader of its rules can be loaded."""
    for path in filter(None, (*backend.modules.values(), backend.in_model)):
        assert load(path)
    runs = any(backend.modules.values())
    assert runs == (backend.environment is not None)
    if backend.environment:
        assert (ROOT / "envs" / f"{backend.environment}.lock").is_file()
    if backend.rules:
        distribution = PARTS.get(backend.rules.package, backend.rules.package)
        assert distribution.startswith(backend.package)
        assert reader(backend.rules.package).WANTED


@each_backend
def test_users_write_its_own_name(backend: Backend) -> None:
    """What users call a backend is its own name, or others beside it."""
    assert not backend.names or backend.name.replace("_", "-") in backend.names


def studied() -> Iterator[str]:
    """Yield the backends that the studies name."""
    for study in yaml.safe_load((ROOT / "config" / "studies.yaml").read_text()).values():
        yield from filter(None, (study["backend"], study.get("moe")))


def test_every_backend_that_a_study_names_has_a_record() -> None:
    """What config/studies.yaml names is a backend."""
    assert set(studied()) <= set(BY_NAME)


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "docs" / "guide.md", *(ROOT / "docs" / "guide").iterdir()],
    ids=str,
)
def test_every_backend_that_the_docs_name_has_a_record(path: Path) -> None:
    """What looks like a backend's name in the README and the guide is one, or an engine's word."""
    pattern = r"\b(?:torch_(?:padded|grouped|sdpa)|flash_attn(?:_\d)?|flashinfer_\w+)\b"
    names = set(re.findall(pattern, path.read_text()))
    options = {word for by_option in WORDS.values() for word in by_option}
    assert names - NAMES - options - {"flashinfer_python"} == set()


def literals(path: Path) -> Iterator[str]:
    """Yield the texts of a file but its docstrings."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.slow
def test_no_other_file_lists_the_backends() -> None:
    """A file names two backends at most, but for those that are about a choice of them."""
    names_by_path = {
        path.relative_to(PACKAGE).as_posix(): NAMES.intersection(literals(path)) - OTHER_NAMES
        for path in PACKAGE.rglob("*.py")
    }
    listing = {path for path, names in names_by_path.items() if len(names) > UNLISTED_MOST}
    assert listing == set(LISTING_FILES)


@pytest.mark.slow
def test_messages_name_known_backends() -> None:
    """A word in a message that looks like a backend of torch's or FlashAttention's is one."""
    pattern = re.compile(
        r"\b(?:torch_(?:padded|grouped|sdpa)|flash_attn(?:_\d)?|flashinfer_fa\d)\b"
    )
    texts = chain.from_iterable(literals(path) for path in PACKAGE.rglob("*.py"))
    assert {name for text in texts for name in pattern.findall(text)} - NAMES == set()
