"""Measured loads of experts: a file of shares or counts, read as a whole, every reason at once."""

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
"""Bytes of a file of loads."""
TOLERANCE = 0.01
"""How far off a sum of shares may be, and k times a share above one: shares are rounded."""
MOST = 20
"""Reasons that are told of one file."""
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)
_VALUES = {
    "share": re.compile(r"\d{1,15}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?", re.ASCII),
    "count": re.compile(r"\d{1,15}", re.ASCII),
}
_COLUMNS = ("expert", *_VALUES, "layer")
_FORM = "Give rows of expert (from 0), share (of all pairs) or count, and layer if they differ"


class MeasuredLoads(Struct, frozen=True):
    """The share of all token-expert pairs of each expert, [layers, E], each layer's adding up to 1.

    `layers` has their numbers, none where the file names none and one row holds for all.
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
        """Raise ConfigError with every reason unless these are loads of a model's experts."""
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
        most = max(map(max, self.shares))
        if most * experts.top_k > 1.0 + TOLERANCE:
            yield (
                f"an expert has {most:.4g} of all pairs, and 1 / k = {1.0 / experts.top_k:.4g} of "
                f"{decoder.name} is the most, as no token goes to it twice"
            )


def read_loads(path: Path) -> MeasuredLoads:
    """Return the loads of a file, .csv or .json (a list of objects), of counts or shares.

    Raises
    ------
    ConfigError
        Every reason why it cannot be believed, MOST of them at most.
    """
    rows = _rows(path)
    if not rows:
        raise _refused(str(path), ["holds no row"])
    reasons: list[str] = []
    value = _value_column(rows[0], reasons)
    found: dict[int | None, dict[int, float]] = defaultdict(dict)
    for number, row in enumerate(rows, start=1):
        reason = _read(row, value, found)
        if reason:
            reasons.append(f"row {number}: {reason}")
    if len(found) > 1 and None in found:
        reasons.append("some rows name a layer and some do not")
    experts = 1 + max((expert for layer in found.values() for expert in layer), default=0)
    layers = sorted(found, key=lambda layer: -1 if layer is None else layer)
    for layer in layers:
        reasons += _of_layer(layer, found[layer], experts, value)
    if reasons:
        raise _refused(str(path), reasons)
    totals = {layer: sum(found[layer].values()) for layer in layers}
    return MeasuredLoads(
        file=str(path),
        shares=tuple(
            tuple(found[layer][expert] / totals[layer] for expert in range(experts))
            for layer in layers
        ),
        layers=tuple(layer for layer in layers if layer is not None),
    )


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    """Return a file's rows as texts by column, each value that is empty left out."""
    if path.suffix not in (".csv", ".json"):
        raise _refused(str(path), ["is neither .csv nor .json by its name"])
    if path.exists() and not path.is_file():
        raise _refused(str(path), ["is no file"])
    try:
        if path.stat().st_size > SIZE_LIMIT:
            raise _refused(str(path), [f"is larger than {SIZE_LIMIT // 2**20} MiB"])
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", remedy="Give a text file") from error
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
        what = f"is no {path.suffix[1:].upper()} of rows: {error}"
        raise _refused(str(path), [what]) from error
    return [{k: v.strip() for k, v in row.items() if v.strip() not in ("", "None")} for row in raw]


def _value_column(first: Mapping[str, str], reasons: list[str]) -> str:
    """Return which column holds the loads, by the first row, and note what is odd of columns."""
    named = [name for name in _VALUES if name in first]
    if len(named) != 1:
        reasons.append("has a share and a count" if named else "has neither a share nor a count")
    return named[0] if named else "share"


def _read(
    row: Mapping[str, str], value: str, found: dict[int | None, dict[int, float]]
) -> str | None:
    """Add a row to what is found; return why it cannot be."""
    odd = [name for name in row if name not in _COLUMNS]
    if odd:
        return f"{odd[0]!r:.40} is no column of loads"
    expert, layer = row.get("expert", ""), row.get("layer")
    if not _WHOLE.fullmatch(expert) or (layer is not None and not _WHOLE.fullmatch(layer)):
        name, text = ("layer", layer) if _WHOLE.fullmatch(expert) else ("expert", expert)
        return f"{name} {text!r:.40} is no whole number from 0"
    text = row.get(value, "")
    if not _VALUES[value].fullmatch(text):
        return f"{value} {text!r:.40} is no number from 0"
    mine = found[None if layer is None else int(layer)]
    if int(expert) in mine:
        return f"expert {int(expert)} is there twice"
    mine[int(expert)] = float(text)
    return None


def _of_layer(
    layer: int | None, loads: Mapping[int, float], experts: int, value: str
) -> Iterator[str]:
    """Yield what is odd of one layer's loads."""
    where = "" if layer is None else f"layer {layer}: "
    if len(loads) < experts:
        missing = next(expert for expert in range(experts) if expert not in loads)
        yield f"{where}expert {missing} of 0 to {experts - 1} is missing"
        return
    total = sum(loads.values())
    if value == "share" and abs(total - 1.0) > TOLERANCE:
        yield f"{where}shares add up to {total:.6g}, not to 1 within {TOLERANCE:g}"
    elif total == 0.0:
        yield f"{where}all counts are 0"


def _refused(file: str, reasons: Sequence[str]) -> ConfigError:
    more = [f"and {len(reasons) - MOST} more"] if len(reasons) > MOST else []
    return ConfigError(printable(f"{file}: {'; '.join([*reasons[:MOST], *more])}"), remedy=_FORM)
