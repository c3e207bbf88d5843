"""The Python API: what commands answer, as data.

Each function asks what its command asks, by the same words: `predict(model, platform, tp=8)` is
`nearfree predict --model MODEL --platform PLATFORM --tp 8 --format json`.
"""

import json
import math
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nearfree.cli import make_parser
from nearfree.cli.extras import missing
from nearfree.derive.truth.truth import boundaries
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from os import PathLike

    import polars as pl

    Name = str | PathLike[str]


def predict(model: "Name", platform: str, **conditions: object) -> list[dict[str, Any]]:
    """Return how many positions of a model are near-free on a platform, and all behind it.

    Parameters
    ----------
    model
        A name under config/models, a path, or a Hugging Face id; several with commas between.
    platform
        A name of platforms.yaml; several with commas between.
    conditions
        Options of `nearfree predict`: batch, context, tp, ep, epsilon, weights, ...

    Returns
    -------
    One entry per deployment, in the form `nearfree.predict.v1` (docs/guide/predict.md). One whose
    forward is not predicted has `answer` None and its `refusals`.

    Raises
    ------
    NearfreeError
        What is asked makes no sense; the message says what to do.

    Examples
    --------
    >>> import nearfree
    >>> (told,) = nearfree.predict("qwen3_8b", "h200", batch=4, largest=64)
    >>> told["answer"]["epsilon"], told["memory"]["fits"]
    (0.2, True)
    """
    return list(_asked("predict", model=model, platform=platform, **conditions))


def schedule(engine: str, model: "Name", platform: str, **conditions: object) -> Any:
    """Return draft lengths by batch size as an engine takes them, and what they rest on.

    Parameters
    ----------
    engine
        vllm, sglang or llama.cpp.
    model, platform
        As of `predict`, one each.
    conditions
        Options of `nearfree schedule`: context, acceptance, drafter, goal, worth, ...

    Raises
    ------
    NearfreeError
        As of `predict`; or T(N) is not known.

    Examples
    --------
    >>> import nearfree
    >>> told = nearfree.schedule("vllm", "qwen3_8b", "h200", context=1024, largest_batch=8)
    >>> told["engine"]
    'vllm'
    """
    return _asked("schedule", engine, model=model, platform=platform, **conditions)


def granularity(release: str, **shape: object) -> Any:
    """Return the blocks or tiles of a release's kernel over a range, each with file and lines.

    Parameters
    ----------
    release
        package==version.
    shape
        Options of `nearfree granularity`: heads, kv_heads, head_dim, experts, d_model, device, ...

    Raises
    ------
    NearfreeError
        No rules of it are known, or they do not say it.

    Examples
    --------
    >>> import nearfree
    >>> told = nearfree.granularity(
    ...     "flash-attn==2.8.3", heads=32, kv_heads=8, head_dim=128, device="NVIDIA H20"
    ... )
    >>> told["package"], told["kernel_path"][0]["from"]
    ('flash-attn', 1)
    """
    return _asked("granularity", release, **shape)


def boundary(n: Sequence[int], latency_us: Sequence[float], epsilon: float = 0.2) -> int:
    """Return N_max of a curve: the largest N with T(N) <= (1 + epsilon) T(first N).

    Parameters
    ----------
    n
        Numbers of positions, rising; the first is the baseline.
    latency_us
        T(N) of each.
    epsilon
        The tolerance.

    Raises
    ------
    ConfigError
        The lists are no curve, or the tolerance is no number from 0 on.

    Examples
    --------
    >>> import nearfree
    >>> nearfree.boundary([1, 2, 4, 8], [10.0, 10.5, 11.0, 15.0])
    4
    """
    import polars as pl

    rising = all(a < b for a, b in pairwise(n))
    if not n or len(n) != len(latency_us) or not rising or not all(t > 0 for t in latency_us):
        raise ConfigError(
            "no curve is given",
            remedy="Give rising N and as many latencies above 0",
        )
    if not 0 <= epsilon < math.inf:
        raise ConfigError(f"the tolerance {epsilon} is no number from 0 on", remedy="Give 0.2")
    first = latency_us[0]
    frame = pl.DataFrame({"curve": 0, "n": list(n), "ratio": [t / first for t in latency_us]})
    return int(boundaries(frame, [epsilon])["n_max"][0])


def curves(answers: Sequence[dict[str, Any]]) -> "pl.DataFrame":
    """Return T(N) of answers of `predict`: model, platform, batch, context, n, ratio, latency_us.

    It plots in one call, with the extra `plot`: `curves(answers).plot.line("n", "ratio")`.

    Examples
    --------
    >>> import nearfree
    >>> frame = nearfree.curves(nearfree.predict("qwen3_8b", "h200", largest=4))
    >>> frame["n"].to_list()
    [1, 2, 3, 4]
    """
    import polars as pl

    about, said = ("model", "platform", "batch", "context"), ("n", "ratio", "latency_us")
    rows = [
        {name: each["deployment"][name] for name in about} | {name: row[name] for name in said}
        for each in answers
        for row in each["curve"]
    ]
    texts = dict.fromkeys(about[:2], pl.String) | dict.fromkeys((*about[2:], "n"), pl.Int64)
    return pl.DataFrame(rows, schema=texts | dict.fromkeys(said[1:], pl.Float64))


def _asked(*words: str, **options: object) -> Any:
    """Return the JSON of a command that is asked by words and options, without printing.

    What is False is its option's `--no-` form, where it has one.
    """
    argv = [*words, "--format", "json"]
    off = [f"--no-{name.replace('_', '-')}" for name, value in options.items() if value is False]
    for name, value in options.items():
        if value is None or value is False:
            continue
        listed = value if isinstance(value, (list, tuple)) else [value]
        text = ",".join(str(each) for each in listed)
        argv += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    out, told = StringIO(), StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(told):
            parser = make_parser(argv)
            _, unknown = parser.parse_known_args([*argv, *off])
            args = parser.parse_args([*argv, *(each for each in off if each not in unknown)])
            args.run(args)
    except SystemExit as error:
        said = told.getvalue().rpartition("error: ")[2].strip() or str(error)
        raise ConfigError(said, remedy=f"See `nearfree {words[0]} --help`") from None
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return json.loads(out.getvalue())
