"""The line to paste: a setting that was tuned, as options of the engine's own program."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from nearfree.core.drafting import Drafting
from nearfree.derive.schedule.llama_cpp import MODEL

_SHELL = {"llama_cpp": ("llama-server", "-m", "-t")}


def paste(
    engine: str,
    run: Drafting,
    model: Path,
    draft: Path | None,
    temperature: float,
    *,
    batch: int = 1,
    positions: int = 0,
) -> str:
    """Return the options of an engine's own program that ask for a setting.

    Parameters
    ----------
    batch, positions
        Prompts that are decoded at once, and the positions that each may take. A server that is
        told its slots gives each a cache of its own, as they had here.
    """
    if engine not in _SHELL:
        return _python(run)
    program, weights, threads = _SHELL[engine]
    words = [program, weights, str(model), threads, str(run.threads)]
    words += [] if run.repack else ["--no-repack"]
    if run.drafter == "draft_model":
        words += ["-md", str(draft), "--spec-type", MODEL, "--spec-draft-n-max", str(run.k)]
    else:
        words += ["--spec-type", run.drafter.replace("_", "-"), *_sizes(run)]
    if batch > 1:
        words += ["--parallel", str(batch), "-c", str(batch * positions)]
    if temperature:
        words += ["--samplers", "temperature", "--temp", f"{temperature:g}"]
    return shlex.join(words)


def _sizes(run: Drafting) -> Iterator[str]:
    """Yield the options of a lookup of llama.cpp that say how much it looks for and drafts."""
    sizes: dict[str, int] = {}
    if run.drafter == "ngram_mod":
        sizes = {"n-match": run.ngram_max, "n-max": run.k, "n-min": run.shortest}
    elif run.drafter not in ("none", "ngram_cache"):  # the latter has no such option
        sizes = {"size-n": run.ngram_max, "size-m": run.k}
    for name, value in sizes.items():
        yield f"--spec-{run.drafter.replace('_', '-')}-{name}"
        yield str(value)


def _python(run: Drafting) -> str:
    """Return the settings of a generation as openvino_genai's config takes them."""
    if run.drafter == "none":
        return "prompt_lookup=False"
    lengths = f", max_ngram_size={run.ngram_max}" if run.ngram_max else ""
    return f"num_assistant_tokens={run.k}{lengths}"
