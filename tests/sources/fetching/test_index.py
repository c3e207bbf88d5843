"""The package index: a release's files, and errors if they cannot be had."""

import json
import subprocess
import sys

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching import index
from nearfree.sources.fetching.index import close, meter, releases

from sources.fetching.indexserver import Server, server

__all__ = ["server"]


def test_versions_come_in_their_order(server: Server) -> None:
    """Versions are in version order, each with its files."""
    for version in ("0.10.0", "0.9.0", "0.9.0.post1", "0.9.0rc1"):
        server.put(f"demo-{version}.tar.gz", version.encode())
    server.put("demo-0.9.0-py3-none-any.whl", b"wheel")
    listed = releases("demo")
    assert list(listed) == ["0.9.0rc1", "0.9.0", "0.9.0.post1", "0.10.0"]
    assert [(a.filename, a.kind) for a in listed["0.9.0"]] == [
        ("demo-0.9.0-py3-none-any.whl", "wheel"),
        ("demo-0.9.0.tar.gz", "sdist"),
    ]


def test_a_file_has_what_the_page_says(server: Server) -> None:
    """An artefact has its package's normalised name, its hash and its URL."""
    digest = server.put("My_Demo-1.0.tar.gz", b"x")
    (artefact,) = releases("my.demo")["1.0"]
    assert (artefact.package, artefact.version, artefact.sha256) == ("my-demo", "1.0", digest)
    assert artefact.url == f"{server.url}/files/My_Demo-1.0.tar.gz"


def test_names_are_normalised(server: Server) -> None:
    """A package is found by any spelling, with one request."""
    server.put("my_demo-1.0.tar.gz", b"x")
    assert releases("My_Demo") == releases("my.demo") != {}
    assert server.seen == ["my-demo"]


def test_other_files_do_not_count(server: Server) -> None:
    """Files of other kinds, without SHA-256 or version, are ignored."""
    server.put("demo-1.0.tar.gz", b"x")
    server.put("demo-1.0.win32.exe", b"x")
    server.put("demo-1.0-py2.7.egg", b"x")
    server.pages["demo"] += '<a href="/files/x#sha256=00">demo-unknown.tar.gz</a>'
    server.pages["demo"] += '<a href="/files/demo-2.0.tar.gz">demo-2.0.tar.gz</a>'
    server.pages["demo"] += '<a href="/files/demo-3.0.tar.gz#md5=00">demo-3.0.tar.gz</a>'
    assert [file.filename for files in releases("demo").values() for file in files] == [
        "demo-1.0.tar.gz"
    ]


def test_an_unknown_package_is_said_to_be_unknown(server: Server) -> None:
    """A missing page is an error that names the package."""
    with pytest.raises(SourceError, match="the package nosuch is unknown to the package index"):
        releases("nosuch")


def test_a_failing_index_is_named_with_its_answer(server: Server) -> None:
    """A server's error shows its status and how to work offline."""
    server.status["demo"] = 500
    with pytest.raises(SourceError, match=r"the package demo .* answers 500") as caught:
        releases("demo")
    assert "--offline" in caught.value.remedy


def test_no_network_points_to_offline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the error names --offline and shows no password."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    with pytest.raises(SourceError, match="the connection failed") as caught:
        releases("demo")
    assert "--offline" in caught.value.remedy
    assert "secret" not in str(caught.value)


def test_a_cut_page_is_refused(server: Server) -> None:
    """A truncated page is refused."""
    server.put("demo-1.0.tar.gz", b"x")
    server.cut.add("demo")
    with pytest.raises(SourceError, match="the package demo"):
        releases("demo")


def test_a_page_of_another_form_is_refused(server: Server) -> None:
    """A page of a later repository version is refused."""
    server.pages["demo"] = '<meta name="pypi:repository-version" content="9.0">'
    with pytest.raises(SourceError, match="no page of the simple repository form"):
        releases("demo")


def test_a_page_that_is_nested_too_deeply_is_refused(server: Server) -> None:
    """JSON that is nested too deeply is refused."""
    server.type = "application/vnd.pypi.simple.v1+json"
    server.pages["demo"] = "[" * 200_000
    with pytest.raises(SourceError, match="no page of the simple repository form"):
        releases("demo")


def test_a_page_may_be_json(server: Server) -> None:
    """The JSON form of the simple repository is read like the other."""
    server.type = "application/vnd.pypi.simple.v1+json"
    file = {"filename": "demo-1.0.tar.gz", "url": "../../files/x", "hashes": {"sha256": "0a"}}
    page = {"meta": {"api-version": "1.0"}, "name": "demo", "files": [file]}
    server.pages["demo"] = json.dumps(page)
    (artefact,) = releases("demo")["1.0"]
    assert (artefact.sha256, artefact.url) == ("0a", f"{server.url}/files/x")
    server.pages["other"] = "{"
    with pytest.raises(SourceError, match="the package other has no page"):
        releases("other")


def test_a_page_has_a_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page above the limit is refused."""
    server.put("demo-1.0.tar.gz", b"x")
    monkeypatch.setattr(index, "PAGE_LIMIT", 10)
    with pytest.raises(SourceError, match="the package demo has no page"):
        releases("demo")


def test_bytes_are_counted(server: Server) -> None:
    """Each byte of a page is counted once; the page is kept until `close`."""
    server.put("demo-1.0.tar.gz", b"x")
    before = meter.fetched_bytes
    releases("demo")
    releases("demo")
    assert meter.fetched_bytes - before == len(server.pages["demo"])
    close()
    releases("demo")
    assert server.seen == ["demo", "demo"]


def test_importing_it_loads_no_network_code() -> None:
    """Importing the module loads no package for the network."""
    program = (
        "import sys, json, nearfree.sources.fetching.fetch; "
        "print(json.dumps([n for n in ('requests', 'pypi_simple') if n in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []
