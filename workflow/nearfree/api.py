"""The Python API: the commands' answers as data.

Each function runs its command with the same option names: `predict(model, platform, tp=8)` is
`nearfree predict --model MODEL --platform PLATFORM --tp 8 --format json`.
"""

import json
import math
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nearfree.cli import make_parser, refuse_empty
from nearfree.cli.extras import missing
from nearfree.derive.truth.truth import boundaries
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from os import PathLike

    import polars as pl

    Name = str | PathLike[str]


def predict(model: "Name", platform: str, **conditions: object) -> list[dict[str, Any]]:
    """Return N_max of a model on a platform, with T(N), its limits and its evidence.

    Parameters
    ----------
    model
        A name under config/models, a path, or a Hugging Face id; or several, comma-separated.
    platform
        A name in platforms.yaml; or several, comma-separated.
    conditions
        Options of `nearfree predict`: batch, context, tp, ep, epsilon, weights, ...

    Returns
    -------
    One entry per deployment, in the form `nearfree.predict.v1` (docs/guide/predict.md). If a
    forward cannot be predicted, its entry has `answer` None and the `refusals`.

    Raises
    ------
    NearfreeError
        The query is invalid; the message says what to do.

    Examples
    --------
    >>> import nearfree
    >>> (forecast,) = nearfree.predict("qwen3_8b", "h200", batch=4, largest=64)
    >>> forecast["answer"]["epsilon"], forecast["memory"]["fits"]
    (0.2, True)
    """
    return list(_run_command("predict", model=model, platform=platform, **conditions))


def schedule(engine: str, model: "Name", platform: str, **conditions: object) -> Any:
    """Return draft lengths by batch size in an engine's own form, with their evidence.

    Parameters
    ----------
    engine
        vllm, sglang or llama.cpp.
    model, platform
        As for `predict`, one each.
    conditions
        Options of `nearfree schedule`: context, acceptance, drafter, goal, worth, ...

    Raises
    ------
    NearfreeError
        As for `predict`; or T(N) cannot be predicted.

    Examples
    --------
    >>> import nearfree
    >>> lengths = nearfree.schedule("vllm", "qwen3_8b", "h200", context=1024, largest_batch=8)
    >>> lengths["engine"]
    'vllm'
    """
    return _run_command("schedule", engine, model=model, platform=platform, **conditions)


def granularity(release: str, **shape: object) -> Any:
    """Return the blocks or tiles of a release's kernel by range of N, each with file and lines.

    Parameters
    ----------
    release
        package==version.
    shape
        Options of `nearfree granularity`: heads, kv_heads, head_dim, experts, d_model, device, ...

    Raises
    ------
    NearfreeError
        The release's rules are not known, or do not give the granularity of this shape.

    Examples
    --------
    >>> import nearfree
    >>> rules = nearfree.granularity(
    ...     "flash-attn==2.8.3", heads=32, kv_heads=8, head_dim=128, device="NVIDIA H20"
    ... )
    >>> rules["package"], rules["kernel_path"][0]["from"]
    ('flash-attn', 1)
    """
    return _run_command("granularity", release, **shape)


def boundary(n: Sequence[int], latency_us: Sequence[float], epsilon: float = 0.2) -> int:
    """Return N_max of a curve: the largest N with T(N) <= (1 + epsilon) T(first N).

    Parameters
    ----------
    n
        Numbers of positions, from 1 on and increasing; the first is the baseline.
    latency_us
        T(N) in microseconds, one per N.
    epsilon
        The tolerance, at least 0.

    Raises
    ------
    ConfigError
        The lists are not a curve, or the tolerance is negative or not finite.

    Examples
    --------
    >>> import nearfree
    >>> nearfree.boundary([1, 2, 4, 8], [10.0, 10.5, 11.0, 15.0])
    4
    """
    import polars as pl

    whole = all(1 <= number < 2**63 and number % 1 == 0 for number in n)
    increasing = whole and all(lower < higher for lower, higher in pairwise(n))
    finite = all(0 < us < math.inf for us in latency_us)
    if not n or len(n) != len(latency_us) or not increasing or not finite:
        raise ConfigError(
            "the lists of N and of latencies are not a curve",
            remedy="Give increasing whole N from 1 on, and one finite latency above 0 per N",
        )
    if not 0 <= epsilon < math.inf:
        raise ConfigError(
            f"the tolerance {epsilon} is not a finite number of at least 0",
            remedy="Give a tolerance such as 0.2",
        )
    baseline_us = latency_us[0]
    frame = pl.DataFrame(
        {"curve": 0, "n": list(map(int, n)), "ratio": [us / baseline_us for us in latency_us]}
    )
    return int(boundaries(frame, [epsilon])["n_max"][0])


def curves(answers: Sequence[dict[str, Any]]) -> "pl.DataFrame":
    """Return T(N) from answers of `predict`: model, platform, batch, context, n, ratio, latency_us.

    With the extra `plot` it plots in one call: `curves(answers).plot.line("n", "ratio")`.

    Examples
    --------
    >>> import nearfree
    >>> frame = nearfree.curves(nearfree.predict("qwen3_8b", "h200", largest=4))
    >>> frame["n"].to_list()
    [1, 2, 3, 4]
    """
    import polars as pl

    deployment_columns, point_columns = (
        ("model", "platform", "batch", "context"),
        ("n", "ratio", "latency_us"),
    )
    rows = [
        {name: answer["deployment"][name] for name in deployment_columns}
        | {name: row[name] for name in point_columns}
        for answer in answers
        for row in answer["curve"]
    ]
    texts = dict.fromkeys(deployment_columns[:2], pl.String) | dict.fromkeys(
        (*deployment_columns[2:], "n"), pl.Int64
    )
    return pl.DataFrame(rows, schema=texts | dict.fromkeys(point_columns[1:], pl.Float64))


def _run_command(*words: str, **options: object) -> Any:
    """Return the decoded JSON output of a command, run without printing.

    `words` are the command and its arguments. An option that is False becomes its `--no-` form, if
    the command has one; None leaves the option out.
    """
    if refused := [name for name in ("format", "help") if name in options]:
        raise ConfigError(
            f"{refused[0]} is no option of a function, which returns data",
            remedy=f"Leave it out, or run `nearfree {words[0]}`",
        )
    argv = [*words, "--format", "json"]
    negations = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if value is False:
            negations.append(f"--no-{option}")
        elif value is True:
            argv.append(f"--{option}")
        elif value is not None:
            items = value if isinstance(value, (list, tuple)) else [value]
            argv += [f"--{option}", ",".join(map(str, items))]
    refuse_empty(argv)
    stdout, stderr = StringIO(), StringIO()
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            parser = make_parser(argv)
            _, unknown = parser.parse_known_args([*argv, *negations])
            known = [negation for negation in negations if negation not in unknown]
            args = parser.parse_args([*argv, *known])
            args.run(args)
    except SystemExit as error:
        message = stderr.getvalue().rpartition("error: ")[2].strip() or str(error)
        raise ConfigError(message, remedy=f"See `nearfree {words[0]} --help`") from None
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return json.loads(stdout.getvalue())
