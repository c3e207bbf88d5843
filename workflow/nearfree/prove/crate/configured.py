"""What manifests say of a config, computed from the texts that a ledger holds of it."""

import tempfile
from pathlib import Path

from nearfree.config.files import Config
from nearfree.decoders.named import decoder_names, find_decoder
from nearfree.errors import ConfigError
from nearfree.log.document import replace
from nearfree.log.ledger import Ledger
from nearfree.log.line import sha256
from nearfree.prove.audit.ledgers import check_names

CONFIG = "config/"
"""What the names of its parts begin with in manifests."""


def config_digests(ledger: Ledger) -> dict[str, set[str]]:
    """Return the digests that each part of a ledger's config can have in a manifest.

    Tables rest on the tolerances, on the headline one, or on both.

    Raises
    ------
    ConfigError
        The config does not fit this code.
    DamageError
        One of its files has a name that none has.
    """
    check_names(ledger)
    from nearfree.derive.outlook.outlook import model_id
    from nearfree.derive.predict.provenance import tolerances_digest
    from nearfree.derive.tables.platforms import config_id

    with tempfile.TemporaryDirectory() as folder:
        for name, text in ledger.config.items():
            replace(Path(folder, name), text.encode())
        config = Config(Path(folder))
        try:
            site = config.site
            ids = [config_id(*each) for each in config.platforms.items()]
            names = decoder_names(config.folder)
            ids += [model_id(find_decoder(config.folder, name)) for name in names]
        except ConfigError as error:
            raise ConfigError(
                f"the config of ledger {ledger.number} does not fit this code: "
                f"{error.what.replace(f'{folder}/', '')}",
                remedy=f"Use the code that wrote it: {ledger.code_digest!a:.40}",
            ) from error
    found = {name: {digest} for name, _, digest in (each.rpartition("@") for each in ids)}
    found["config/config.yaml:epsilon"] = {sha256(repr(site.epsilon).encode())}
    for some in (site.tolerances, [site.epsilon, *site.tolerances], [site.epsilon]):
        for name, digest in tolerances_digest(some).items():
            found.setdefault(name, set()).add(digest)
    return found
