"""A model as a plan carries it: its shape and its details, with a digest of both."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from nearfree.core.setting import Setting
from nearfree.decoders.config_file import find_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details, read_details
from nearfree.decoders.gguf_files.parts import check_gguf
from nearfree.decoders.precision import read_precision
from nearfree.decoders.stored.quantised import Quantised
from nearfree.errors import ConfigError


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a config.json that determines a forward, and nothing else of the file."""

    decoder: Decoder
    details: Details

    @property
    def plain(self) -> dict[str, Any]:
        """The model as plain JSON data, as a plan carries it."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return fields

    @property
    def digest(self) -> str:
        """A digest, 12 hex digits, that distinguishes models with the same name."""
        raw = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(raw).hexdigest()[:12]

    def with_top_k(self, top_k: int | None) -> "Model":
        """Return the model with `top_k` experts per token; None leaves the number unchanged.

        Raises
        ------
        ConfigError
            The model has no experts, or fewer than `top_k`.
        """
        if top_k is None:
            return self
        experts = self.decoder.experts
        if experts is None:
            raise ConfigError(
                f"{self.decoder.name} has no experts, of which a token could take {top_k}",
                remedy="Leave top_k out",
            )
        if top_k > experts.experts:
            raise ConfigError(
                f"top_k {top_k} is larger than the {experts.experts} experts of "
                f"{self.decoder.name}",
                remedy=f"Choose {experts.experts} at most",
            )
        replaced = structs.replace(experts, top_k=top_k)
        return structs.replace(self, decoder=structs.replace(self.decoder, experts=replaced))

    @property
    def choice(self) -> int:
        """Number of experts among which its router chooses for a token: those of the kept groups.

        It is 0 without a router.
        """
        experts, router = self.decoder.experts, self.details.router
        if experts is None or router is None:
            return 0
        return experts.experts // router.groups * router.kept_groups


def read_model(config_folder: Path, name: str) -> Model:
    """Return the model of a name or path; ConfigError gives the reason if it cannot be run here."""
    file = find_file(config_folder, name)
    check_gguf(file)
    if read_precision(file).quantised != Quantised():
        raise ConfigError(
            f"{file} says that weights are quantised, and forwards here run unquantised ones",
            remedy="Give the config of the unquantised model",
        )
    return Model(decoder=read_decoder(file), details=read_details(file))


def model_of(setting: Setting, models: Mapping[str, Any]) -> Model:
    """Return the model of a setting from a plan's models, with the setting's top k.

    Raises
    ------
    ConfigError
        The plan has no such model, or another one under that name.
    """
    try:
        model = msgspec.convert(models[setting.model or ""], Model)
    except (KeyError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"the plan does not hold the model {setting.model}: {error}",
            remedy="Give what `nearfree plan` prints",
        ) from error
    if model.digest != setting.model_digest:
        raise ConfigError(
            f"the plan's model {setting.model} is not that of its setting",
            remedy="Give what `nearfree plan` prints",
        )
    return model.with_top_k(setting.top_k)
