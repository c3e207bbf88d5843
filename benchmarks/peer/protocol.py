"""The SDK as a process that answers JSON with JSON: what it may send, and how long it may take."""

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
MOST_BYTES = 256 * 2**20
"""What an answer may be long."""
_LAST_WORDS = 300


class Query(Struct, frozen=True):
    """One curve to ask for, by the SDK's names; n are rows or tokens."""

    module: str
    system: str
    backend: str
    version: str
    quant: str
    sizes: dict[str, int]
    n: tuple[int, ...]


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies in ms at each n of a query, or why there are none."""

    latency_ms: tuple[float, ...] | None = None
    refusal: str | None = None


class Where(Struct, frozen=True):
    """Versions of the SDK's packages, and the folder of its tables."""

    versions: dict[str, str]
    systems: str


class _Answers(Struct, frozen=True):
    answers: list[Answer]


Kind = TypeVar("Kind", Where, _Answers)


class Sdk(Struct, frozen=True):
    """The SDK in its own interpreter.

    Parameters
    ----------
    python
        An interpreter that has the SDK's packages.
    timeout_s
        Seconds that a request may take.
    script
        What speaks the protocol there.
    """

    python: Path
    timeout_s: float
    script: Path = SCRIPT

    def where(self) -> Where:
        """Return versions and tables; ConfigError if the SDK cannot be asked."""
        return self._ask({"ask": "where"}, Where)

    def latency(self, systems: Path, mode: str, queries: Sequence[Query]) -> list[Answer]:
        """Return the answer to each query, in their order.

        Parameters
        ----------
        systems
            The folder of tables to answer from.
        mode
            The SDK's own name of how it answers: SILICON, HYBRID or EMPIRICAL.

        Raises
        ------
        ConfigError
            The SDK cannot be asked, takes too long, or sends what is no answer.
        """
        request = {"ask": "latency", "systems": str(systems), "mode": mode, "queries": queries}
        answers = self._ask(request, _Answers).answers
        if len(answers) != len(queries):
            raise self._odd(f"gave {len(answers)} answers to {len(queries)} queries")
        for query, answer in zip(queries, answers, strict=True):
            found = answer.latency_ms
            if (found is None) == (answer.refusal is None):
                raise self._odd("gave an answer that is neither latencies nor a refusal")
            if found is not None and len(found) != len(query.n):
                raise self._odd(f"gave {len(found)} latencies for {len(query.n)} numbers")
            if any(not math.isfinite(each) or each <= 0.0 for each in found or ()):
                raise self._odd("gave a latency that is no positive number")
        return answers

    def _ask(self, request: dict[str, Any], kind: type[Kind]) -> Kind:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as words:
            try:
                done = subprocess.run(
                    [self.python, "-I", self.script], input=msgspec.json.encode(request),
                    stdout=out, stderr=words, timeout=self.timeout_s, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise self._odd(f"gave no answer in {self.timeout_s:g} s") from error
            except OSError as error:
                raise self._odd(f"cannot be started ({error.strerror})") from error
            if done.returncode:
                end = words.seek(0, 2)
                words.seek(max(end - _LAST_WORDS, 0))
                last = words.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise self._odd(f"ended with code {done.returncode}: {last}")
            if out.seek(0, 2) > MOST_BYTES:
                raise self._odd(f"sent more than {MOST_BYTES:,} bytes")
            out.seek(0)
            try:
                return msgspec.json.decode(out.read(), type=kind)
            except msgspec.DecodeError as error:
                raise self._odd(f"sent what is no answer ({error})") from error

    def _odd(self, what: str) -> ConfigError:
        return ConfigError(
            f"the SDK in {self.python} {what}",
            remedy="Name an interpreter with `aiconfigurator` 0.12.0, or allow more `--timeout`",
        )
