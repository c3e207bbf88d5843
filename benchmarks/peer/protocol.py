"""The SDK as a child process that speaks JSON: requests, checked answers, limits."""

import math
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from nearfree.errors import ConfigError

SCRIPT = Path(__file__).with_name("sdk.py")
MAX_BYTES = 256 * 2**20
"""Largest size of an answer."""
_TAIL_BYTES = 300


class Query(Struct, frozen=True):
    """One curve to query, by the SDK's names; `n` are rows or tokens."""

    module: str
    system: str
    backend: str
    version: str
    quant: str
    sizes: dict[str, int]
    n: tuple[int, ...]


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies in ms at each `n` of a query, or the reason of a refusal."""

    latency_ms: tuple[float, ...] | None = None
    refusal: str | None = None


class Installation(Struct, frozen=True):
    """Versions of the SDK's packages, and the folder of its tables."""

    versions: dict[str, str]
    systems: str


class _Answers(Struct, frozen=True):
    answers: list[Answer]


Kind = TypeVar("Kind", Installation, _Answers)


class Sdk(Struct, frozen=True):
    """The SDK in its own interpreter.

    Parameters
    ----------
    python
        An interpreter that has the SDK's packages.
    timeout_s
        Time limit of a request in seconds.
    script
        The script that answers requests there.
    """

    python: Path
    timeout_s: float
    script: Path = SCRIPT

    def installation(self) -> Installation:
        """Return versions and the folder of tables; ConfigError if the SDK does not answer."""
        return self._ask({"ask": "where"}, Installation)

    def latency(self, systems: Path, mode: str, queries: Sequence[Query]) -> list[Answer]:
        """Return the answer to each query, in order.

        Parameters
        ----------
        systems
            The folder of tables to answer from.
        mode
            The SDK's mode: SILICON, HYBRID or EMPIRICAL.

        Raises
        ------
        ConfigError
            The SDK does not answer, takes too long, or sends an invalid answer.
        """
        request = {"ask": "latency", "systems": str(systems), "mode": mode, "queries": queries}
        answers = self._ask(request, _Answers).answers
        if len(answers) != len(queries):
            raise self._error(f"gave {len(answers)} answers to {len(queries)} queries")
        for query, answer in zip(queries, answers, strict=True):
            latencies = answer.latency_ms
            if (latencies is None) == (answer.refusal is None):
                raise self._error("gave an answer that is neither latencies nor a refusal")
            if latencies is not None and len(latencies) != len(query.n):
                raise self._error(f"gave {len(latencies)} latencies for {len(query.n)} numbers")
            if any(not math.isfinite(ms) or ms <= 0.0 for ms in latencies or ()):
                raise self._error("gave a latency that is no positive number")
        return answers

    def _ask(self, request: dict[str, Any], kind: type[Kind]) -> Kind:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            try:
                completed = subprocess.run(
                    [self.python, "-I", self.script], input=msgspec.json.encode(request),
                    stdout=stdout, stderr=stderr, timeout=self.timeout_s, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise self._error(f"gave no answer in {self.timeout_s:g} s") from error
            except OSError as error:
                raise self._error(f"cannot be started ({error.strerror})") from error
            if completed.returncode:
                end = stderr.seek(0, 2)
                stderr.seek(max(end - _TAIL_BYTES, 0))
                last_line = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise self._error(f"ended with code {completed.returncode}: {last_line}")
            if stdout.seek(0, 2) > MAX_BYTES:
                raise self._error(f"sent more than {MAX_BYTES:,} bytes")
            stdout.seek(0)
            try:
                return msgspec.json.decode(stdout.read(), type=kind)
            except msgspec.DecodeError as error:
                raise self._error(f"sent what is no answer ({error})") from error

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(
            f"the SDK in {self.python} {problem}",
            remedy="Name an interpreter with `aiconfigurator` 0.12.0, or allow more `--timeout`",
        )
