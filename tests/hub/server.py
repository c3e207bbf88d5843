"""A local server that answers as the Hugging Face Hub is documented to, for the real library.

`HEAD` and `GET /ORG/NAME/resolve/REVISION/FILE` answer with ETag, X-Repo-Commit and, of a large
file, X-Linked-Size and X-Linked-Etag behind a redirect; errors have X-Error-Code. Source:
https://huggingface.co/docs/hub/api and huggingface_hub 2.4.0, file_download.py, utils/_http.py.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"
OLDER = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = {"main": COMMIT, COMMIT: COMMIT, "v1": OLDER, OLDER: OLDER, "refs/pr/1": OLDER}
HANG_S = 120.0
_PART = 1 << 16
Reply = tuple[int, bytes, dict[str, str]]


class Hub:
    """Repositories by id with their files by name, the kind of misbehaviour, and the requests."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.gated: set[str] = set()
        self.moved: dict[str, str] = {}
        self.kind = ""
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        self.url = ""
        self.over = threading.Event()

    @property
    def files(self) -> set[str]:
        """The file names of all requests so far."""
        return {path.rpartition("/")[2] for _, path in self.requests}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.hub, unquote(self.path)
        hub.requests.append((self.command, path))
        if hub.kind == "hangs":
            hub.over.wait(HANG_S)
            return
        repository, _, rest = path.removeprefix("/").partition("/resolve/")
        self._reply(*self._found(repository, *rest.rpartition("/")[::2]), body=body)

    def _found(self, repository: str, revision: str, name: str) -> Reply:
        """Return the status, the content and the headers of an answer."""
        hub = self.hub
        headers = {"X-Repo-Commit": REVISIONS.get(revision, "")}
        content = hub.repositories.get(repository, {}).get(name)
        etag = hashlib.sha256(content or b"").hexdigest()
        replies = (
            (hub.kind == "html", 200, b"<html>log in</html>", {}),
            (hub.kind == "broken", 503, b"", {}),
            (repository in hub.moved, 307, b"", {"Location": self._moved(repository)}),
            (repository in hub.gated, 401, b"", {"X-Error-Code": "GatedRepo"}),
            (repository not in hub.repositories, 404, b"", {"X-Error-Code": "RepoNotFound"}),
            (revision not in REVISIONS, 404, b"", {"X-Error-Code": "RevisionNotFound"}),
            (content is None, 404, b"", headers | {"X-Error-Code": "EntryNotFound"}),
            (True, 200, content or b"", headers | {"ETag": f'"{etag}"'}),
        )
        return next(reply[1:] for reply in replies if reply[0])

    def _moved(self, repository: str) -> str:
        return self.path.replace(repository, self.hub.moved.get(repository, ""))

    def _reply(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        hub = self.hub
        if hub.kind == "climbs":
            headers["X-Repo-Commit"] = "../../../outside"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if hub.kind != "unsized" or not body:
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        sent = content[: len(content) // 2] if hub.kind == "cut" else content
        for at in range(0, len(sent) if body else 0, _PART):
            with suppress(OSError):  # the client has disconnected
                self.wfile.write(sent[at : at + _PART])
                hub.sent += _PART


@contextmanager
def serving(repositories: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """Serve repositories on this machine until the block ends."""
    hub = Hub(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    server.block_on_close = False
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
