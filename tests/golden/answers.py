"""Answers of commands on a golden log, as data: those that no table holds."""

import json
from collections.abc import Callable
from typing import Any

_DENSE = ("--model", "qwen3_8b", "--attention", "flash-attn==2.8.3")
_SHAPE = ("--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--device", "NVIDIA H20")
COMMANDS = (
    ("predict", *_DENSE, "--platform", "h20,h100", "--format", "json"),
    (
        *("predict", *_DENSE, "--platform", "h20", "--positions", "8", "--format", "csv"),
        "--ignore-memory",
    ),
    ("schedule", "vllm", *_DENSE, "--platform", "h20", "--context", "1024"),
    ("granularity", "flash-attn==2.8.3", *_SHAPE, "--offline", "--format", "json"),
    ("lookup", "--published", "--format", "csv"),
    ("validate", "--offline", "--format", "json"),
)


def answers(run: Callable[..., str]) -> dict[str, Any]:
    """Return the answer to each command by its words: JSON as its values, other text by line.

    Parameters
    ----------
    run
        Runs a command on a log and returns its output.
    """
    return {f"answers/{' '.join(words)}": _values(run(*words)) for words in COMMANDS}


def _values(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()
