"""Measured loads of experts from a file of shares or counts; an error names all mistakes."""

import csv
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, json

from nearfree.core.modules.routing import MEASURED
from nearfree.decoders.decoder import Decoder
from nearfree.errors import ConfigError, printable

SIZE_LIMIT = 16 * 2**20
"""Size limit of a file of loads, in bytes."""
TOLERANCE = 0.01
"""Tolerance for rounded shares: of their sum, and of k times a share above 1."""
MOST = 20
"""The largest number of mistakes that an error names."""
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)
_VALUES = {
    "share": re.compile(r"\d{1,15}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?", re.ASCII),
    "count": re.compile(r"\d{1,15}", re.ASCII),
}
_COLUMNS = ("expert", *_VALUES, "layer")
_FORM = "Give rows of expert (from 0), share (of all pairs) or count, and layer if they differ"


class MeasuredLoads(Struct, frozen=True):
    """Each expert's share of all token-expert pairs, [layers, E]; each layer's shares sum to 1.

    `layers` are the numbers of the layers; it is empty if the file has none and one row applies to
    all layers.
    """

    file: str
    shares: tuple[tuple[float, ...], ...]
    layers: tuple[int, ...] = ()

    @property
    def routing(self) -> str:
        """The routing's name: a digest of layers and shares."""
        raw = json.encode((self.layers, self.shares))
        return f"{MEASURED}{hashlib.sha256(raw).hexdigest()[:12]}"

    def check(self, decoder: Decoder) -> None:
        """Raise ConfigError with every reason unless the loads fit a model's experts."""
        reasons = list(self._misfits(decoder))
        if reasons:
            raise _refused(self.file, reasons)

    def _misfits(self, decoder: Decoder) -> Iterator[str]:
        experts = decoder.experts
        if experts is None:
            yield f"there are no experts in {decoder.name}"
            return
        if len(self.shares[0]) != experts.experts:
            yield f"it has {len(self.shares[0])} experts, and {decoder.name} {experts.experts}"
        unknown = [layer for layer in self.layers if layer >= decoder.layers]
        if unknown:
            last = decoder.layers - 1
            yield f"it names the layer {unknown[0]}, and {decoder.name} ends at {last}"
        if self.layers and len(self.layers) != decoder.moe_layers:
            yield (
                f"it has {len(self.layers)} layers, and {decoder.name} experts in "
                f"{decoder.moe_layers}"
            )
        largest = max(map(max, self.shares))
        if largest * experts.top_k > 1.0 + TOLERANCE:
            yield (
                f"an expert has {largest:.4g} of all pairs, more than 1 / k = "
                f"{1.0 / experts.top_k:.4g} of {decoder.name}: no token goes to it twice"
            )


def read_loads(path: Path) -> MeasuredLoads:
    """Return the loads of a .csv or .json file (a list of objects) with counts or shares.

    Raises
    ------
    ConfigError
        The file is no consistent table of loads. The error names up to MOST mistakes.
    """
    rows = _rows(path)
    if not rows:
        raise _refused(str(path), ["holds no row"])
    reasons: list[str] = []
    column = _value_column(rows[0], reasons)
    loads: dict[int | None, dict[int, float]] = defaultdict(dict)
    for number, row in enumerate(rows, start=1):
        reason = _add_row(row, column, loads)
        if reason:
            reasons.append(f"row {number}: {reason}")
    if len(loads) > 1 and None in loads:
        reasons.append("some rows name a layer and some do not")
    experts = 1 + max((expert for layer in loads.values() for expert in layer), default=0)
    layers = sorted(loads, key=lambda layer: -1 if layer is None else layer)
    for layer in layers:
        reasons += _layer_mistakes(layer, loads[layer], experts, column)
    if reasons:
        raise _refused(str(path), reasons)
    totals = {layer: sum(loads[layer].values()) for layer in layers}
    return MeasuredLoads(
        file=str(path),
        shares=tuple(
            tuple(loads[layer][expert] / totals[layer] for expert in range(experts))
            for layer in layers
        ),
        layers=tuple(layer for layer in layers if layer is not None),
    )


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    """Return a file's rows as strings by column, without empty values."""
    if path.suffix not in (".csv", ".json"):
        raise _refused(str(path), ["is neither .csv nor .json by its name"])
    if path.exists() and not path.is_file():
        raise _refused(str(path), ["is no file"])
    try:
        if path.stat().st_size > SIZE_LIMIT:
            raise _refused(str(path), [f"is larger than {SIZE_LIMIT // 2**20} MiB"])
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "Give a text file" if path.exists() else "Give the path of a .csv or .json file"
        raise ConfigError(f"{path} cannot be read: {error}", remedy=remedy) from error
    try:
        raw = (
            [{str(k): str(v) for k, v in row.items()} for row in csv.DictReader(io.StringIO(text))]
            if path.suffix == ".csv"
            else [
                {key: f"{value}" for key, value in row.items() if not isinstance(value, bool)}
                for row in json.decode(text, type=list[dict[str, bool | int | float | str | None]])
            ]
        )
    except (csv.Error, msgspec.DecodeError) as error:
        reason = f"is no {path.suffix[1:].upper()} of rows: {error}"
        raise _refused(str(path), [reason]) from error
    return [{k: v.strip() for k, v in row.items() if v.strip() not in ("", "None")} for row in raw]


def _value_column(first: Mapping[str, str], reasons: list[str]) -> str:
    """Return the column of the loads by the first row; add a reason if there is not exactly one."""
    present = [name for name in _VALUES if name in first]
    if len(present) != 1:
        reasons.append("has a share and a count" if present else "has neither a share nor a count")
    return present[0] if present else "share"


def _add_row(
    row: Mapping[str, str], column: str, loads: dict[int | None, dict[int, float]]
) -> str | None:
    """Add a row to `loads`; return the reason if it is wrong."""
    unknown = [name for name in row if name not in _COLUMNS]
    if unknown:
        return f"{unknown[0]!r:.40} is no column of loads"
    expert, layer = row.get("expert", ""), row.get("layer")
    if not _WHOLE.fullmatch(expert) or (layer is not None and not _WHOLE.fullmatch(layer)):
        name, text = ("layer", layer) if _WHOLE.fullmatch(expert) else ("expert", expert)
        return f"{name} {text!r:.40} is no whole number from 0"
    text = row.get(column, "")
    if not _VALUES[column].fullmatch(text):
        return f"{column} {text!r:.40} is no number from 0"
    layer_loads = loads[None if layer is None else int(layer)]
    if int(expert) in layer_loads:
        return f"expert {int(expert)} is there twice"
    layer_loads[int(expert)] = float(text)
    return None


def _layer_mistakes(
    layer: int | None, loads: Mapping[int, float], experts: int, column: str
) -> Iterator[str]:
    """Yield the mistakes in one layer's loads."""
    prefix = "" if layer is None else f"layer {layer}: "
    if len(loads) < experts:
        missing = next(expert for expert in range(experts) if expert not in loads)
        yield f"{prefix}expert {missing} of 0 to {experts - 1} is missing"
        return
    total = sum(loads.values())
    if column == "share" and abs(total - 1.0) > TOLERANCE:
        yield f"{prefix}shares add up to {total:.6g}, not to 1 within {TOLERANCE:g}"
    elif total == 0.0:
        yield f"{prefix}all counts are 0"


def _refused(file: str, reasons: Sequence[str]) -> ConfigError:
    more = [f"and {len(reasons) - MOST} more"] if len(reasons) > MOST else []
    return ConfigError(printable(f"{file}: {'; '.join([*reasons[:MOST], *more])}"), remedy=_FORM)
