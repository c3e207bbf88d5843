"""Environments: what a lock pins, and that the package index still has it."""

import re
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from msgspec import Struct
from nearfree.backends.environments.lock import WORKFLOW_ENVIRONMENT
from nearfree.backends.records import BACKENDS
from nearfree.config.files import Config
from nearfree.sources.fetching.index import Artefact, releases
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
ENVS = ROOT / "envs"
PACKAGES = {
    backend.environment: backend.package
    for backend in BACKENDS
    if backend.environment not in (None, WORKFLOW_ENVIRONMENT)
}
"""The package that each backend's environment is for."""
ALWAYS = {"torch", "msgspec", "nvidia-ml-py", "setuptools"}
RESOLUTION = tomllib.loads((ENVS / "uv.toml").read_text())["pip"]
BUILT = set(RESOLUTION["no-binary"])
"""Packages whose source alone is on the index."""
GLIBC_MINOR = 35
ENTRY = re.compile(r"(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n((?:    # .*\n)*)")

each_backend = pytest.mark.parametrize("name", PACKAGES)


class Pin(Struct, frozen=True):
    """One package of a lock: its version, and the SHA-256 of each file that may be installed."""

    version: str
    sha256: frozenset[str]


def read_lock(name: str) -> dict[str, Pin]:
    """Return a lock's packages by name; it has to be a lock from its first byte to its last."""
    text = (ENVS / f"{name}.lock").read_text(encoding="ascii")
    pins, end = {}, 0
    for entry in ENTRY.finditer(text):
        assert entry.start() == end, f"{name}.lock holds {text[end : end + 80]!r}"
        end = entry.end()
        requirement = Requirement(entry[1])
        (specifier,) = requirement.specifier
        assert (specifier.operator, requirement.marker) == ("==", None), entry[1]
        package = canonicalize_name(requirement.name)
        assert package not in pins, package
        pins[package] = Pin(specifier.version, frozenset(re.findall("[0-9a-f]{64}", entry[2])))
    assert end == len(text)
    return pins


def read_names(name: str) -> Iterator[Requirement]:
    """Yield the requirements of a backend's environment."""
    for line in (ENVS / f"{name}.in").read_text().splitlines():
        if not line.startswith("#"):
            yield Requirement(line)


@each_backend
def test_a_lock_pins_everything_by_hash(name: str) -> None:
    """Each line of a lock is one exact version with the SHA-256 of at least one file."""
    assert all(pin.sha256 for pin in read_lock(name).values())


@each_backend
def test_a_lock_has_what_was_asked_for(name: str) -> None:
    """A lock has its backend, the packages of measuring, and each requirement in its range."""
    pins, requirements = read_lock(name), list(read_names(name))
    assert {PACKAGES[name], *ALWAYS} <= {requirement.name for requirement in requirements}
    for requirement in requirements:
        assert pins[requirement.name].version in requirement.specifier, requirement


@each_backend
def test_a_conda_file_is_over_its_lock(name: str) -> None:
    """A conda file has the locks' Python, and either its lock or, where that is built, nothing."""
    document = yaml.safe_load((ENVS / f"{name}.yaml").read_text())
    python, pip, *rest = document["dependencies"]
    assert (python, pip) == (f"python={RESOLUTION['python-version']}", "pip")
    assert rest == ([] if PACKAGES[name] in BUILT else [{"pip": [f"-r {name}.lock"]}])


def test_a_conda_file_names_no_lock_without_hashes() -> None:
    """One hash makes pip ask for all: a lock without them, such as cpu.lock, has a step of its own.

    Each line of such a lock that names a version would end conda's only call of pip.
    """
    for path in ENVS.glob("*.yaml"):
        _, _, *rest = yaml.safe_load(path.read_text())["dependencies"]
        locks = [line.removeprefix("-r ") for requirement in rest for line in requirement["pip"]]
        texts = [(ENVS / lock).read_text() for lock in locks]
        pinned = re.findall(r"(?m)^[a-z].*==.*$", "\n".join(texts))
        assert all(line.endswith("\\") for line in pinned), path


def test_every_environment_that_is_named_has_a_lock() -> None:
    """The environments of the backends have their locks under envs/."""
    named = set(Config(ROOT / "config").environments.values())
    assert {name for name in named if not (ENVS / f"{name}.lock").is_file()} == set()


@pytest.mark.parametrize("name", ["vllm", "sglang", "flash_attn", "flashinfer", "xformers"])
def test_the_rules_of_a_locked_backend_are_kept(name: str) -> None:
    """What is measured is a release whose rules config/sources.yaml asks for."""
    package = PACKAGES[name]
    releases = Config(ROOT / "config").releases
    assert f"{package}=={read_lock(name)[package].version}" in releases


def test_no_lock_says_where_packages_come_from() -> None:
    """No environment names an index or another address: that is the site's to choose."""
    for path in ENVS.iterdir():
        assert "://" not in path.read_text(), path


@pytest.fixture(scope="module")
def on_index() -> dict[str, dict[str, list[Artefact]]]:
    """Return all releases of every locked package, each package's page read once."""
    names = sorted({package for name in PACKAGES for package in read_lock(name)})
    with ThreadPoolExecutor(8) as readers:
        return dict(zip(names, readers.map(releases, names), strict=True))


def wheel_tags() -> frozenset[Tag]:
    """Return the tags of wheels that CPython 3.12 takes on Linux on x86-64 with this glibc."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR, 4, -1)]
    platforms += [f"manylinux{old}_x86_64" for old in ("2014", "2010", "1")] + ["linux_x86_64"]
    return frozenset(
        [
            *cpython_tags((3, 12), platforms=platforms),
            *compatible_tags((3, 12), interpreter="cp312", platforms=platforms),
        ]
    )


@pytest.mark.slow
@each_backend
def test_the_index_has_what_a_lock_pins(
    name: str, on_index: dict[str, dict[str, list[Artefact]]]
) -> None:
    """Each release is on the index, not yanked, with a file of a locked hash that installs."""
    tags = wheel_tags()
    for package, pin in read_lock(name).items():
        files = [f for f in on_index[package].get(pin.version, []) if f.sha256 in pin.sha256]
        assert files, f"{package} {pin.version} is not on the index as it is locked"
        assert not any(file.yanked for file in files), f"{package} {pin.version} is yanked"
        wheels = [parse_wheel_filename(f.filename)[3] for f in files if f.kind == "wheel"]
        built = package in BUILT and any(file.kind == "sdist" for file in files)
        assert built or any(wheel & tags for wheel in wheels), f"{package} has no wheel"
