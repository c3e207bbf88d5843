"""Options under which a refused deployment is answered: each is tried before it is named."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations, product
from typing import Any, NamedTuple

from msgspec import structs

from nearfree.backends.names import moe_backend
from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.core.parallel import DEGREES, Parallel
from nearfree.core.precision import FORMATS, PLAIN
from nearfree.decoders.model_file import find_model_file
from nearfree.decoders.ranks.engines import SGLANG, VLLM
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.degrees import (
    Changes,
    Option,
    node_options,
    node_refusals,
    platform_options,
    pp_options,
    tp_options,
)
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.model_query import Unanswered
from nearfree.derive.predict.forecast.on_record import listed_versions
from nearfree.derive.predict.forecast.slower_options import with_slower_options
from nearfree.derive.predict.forecast.total import total
from nearfree.errors import ConfigError, Refusal

_ENGINES = (VLLM.name, SGLANG.name)
_OTHER_ENGINE = re.compile(r"--moe ([\w.=-]*\w)")
"""The release of another engine in a remedy."""
_ONE_GPU: dict[str, Any] = {**dict.fromkeys(DEGREES, 1), "gpus": None}
_OWN_ATTENTION: dict[str, Any] = {"attention": ()}
"""Attention by the engine's own kernels."""


class Alternatives:
    """A query's deployments asked again with other options.

    Parameters
    ----------
    spec, loads
        The query that was refused.
    answerer
        The predictors that answer it.
    """

    def __init__(
        self,
        config: Config,
        spec: DeploymentSpec,
        answerer: Answerer,
        loads: MeasuredLoads | None = None,
    ) -> None:
        self._config, self._spec, self._answerer, self._loads = config, spec, answerer, loads

    def reasons(self, model: str, platform: str, tried: Sequence[Changes]) -> list[tuple[str, ...]]:
        """Return why changed queries about one model and platform are not answered at b and L.

        Parameters
        ----------
        model
            The model's name in answers, or the text by which the query names it.
        tried
            The changes of each query; all are asked together.
        """
        text = self._texts.get(model, model)
        first = {"batch": self._spec.batch[:1], "context": self._spec.context[:1]}
        found, queries, places = list[tuple[str, ...]](), list[Deployment](), list[int]()
        for place, changes in enumerate(tried):
            asked = {"models": (text,), "platforms": (platform,), **first, **changes}
            try:
                answerable, unanswered = expand(
                    self._config, structs.replace(self._spec, **asked), self._loads
                )
            except ConfigError as error:
                found.append((error.what,))
                continue
            found.append(tuple(str(why) for query in unanswered for why in query.refusals))
            if not unanswered:
                queries += answerable
                places += [place] * len(answerable)
        if queries:
            refusals = total(Questions(queries, [1]), self._answerer).refusals
            for place, refusal in zip(places, refusals, strict=True):
                found[place] += (refusal,) if refusal else ()
        return [tuple(dict.fromkeys(each)) for each in found]

    def options(self, query: Deployment) -> list[Option]:
        """Return the options that answer a refused deployment, the nearest of each kind.

        Of a tp over several nodes that of a node is tried first, with pp or dp for the rest; of a
        format that the query names the nearest other one, of one of everything a plain one. Rows in
        16 bits are tried where they are narrower, then the releases of each engine, the newest
        first, then the model's own cache. Where nothing else helps, the nearest formats of the
        weights are tried; where no option helps alone, any two; and where no two do, the platform
        that is nearest.
        """
        if not query.served:
            return []
        plain, rows = query.formats.plain, query.main.activations
        formats: list[Option] = [
            (f"--weights {name}", {"weights": name}) for name in _nearest(query)
        ]
        named = self._spec.weights or self._spec.dtype
        tried = [node_options(query.parallel, query.node_gpus)]
        if named:
            tried.append(formats)
        if self._spec.dtype:
            tried.append([(f"--dtype {name}", {"dtype": name}) for name in PLAIN])
        if rows not in PLAIN and not self._spec.activations:
            tried.append([(f"--activations {plain}", {"activations": plain})])
        tried += map(self._releases, dict.fromkeys((query.engine.name, *_ENGINES)))
        if query.formats.kv not in PLAIN:
            tried.append([(f"--kv-dtype {plain}", {"kv_dtype": plain})])
        found = self._working(query, tried)
        if not found and not named:
            tried.append(formats)
            found = self._working(query, [formats])
        platforms = platform_options(self._config.platforms, query.platform, query.parallel)
        return (
            found
            or self._working(query, [_both(*two) for two in combinations(tried, 2)])
            or self._working(query, [platforms])
        )

    def _working(self, query: Deployment, tried: Sequence[Sequence[Option]]) -> list[Option]:
        """Return the first option of each group that answers a deployment."""
        changes = [changes for group in tried for _, changes in group]
        reasons = iter(self.reasons(query.decoder.name, query.platform, changes))
        answering = [[option for option in group if not next(reasons)] for group in tried]
        return [group[0] for group in answering if group]

    def _releases(self, engine: str) -> list[Option]:
        """Return the listed releases of an engine as options, the newest first."""
        release = moe_backend(engine)
        versions = listed_versions(self._config, release)
        return [_release(f"{release.name}=={version}") for version in versions]

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The texts by which the query names its models, by the models' names in answers."""
        texts = self._spec.models
        return {find_model_file(self._config.folder, text).name: text for text in texts}

    def named(self, answers: Forecast) -> Forecast:
        """Return a forecast whose refused deployments name the options that answer them.

        The others tell which option makes T(1) longer.
        """
        found = dict[Deployment, tuple[str, ...]]()
        deployments = list(answers.deployments)
        for index, refusal in enumerate(answers.total.refusals):
            if refusal is None:
                continue
            query = deployments[index]
            key = structs.replace(query, batch=1, context=1, memory=None)
            if key not in found:
                found[key] = tuple(text for text, _ in self.options(query))
            deployments[index] = structs.replace(query, instead=found[key])
        answers = structs.replace(answers, deployments=deployments)
        return with_slower_options(self._config, self._spec, answers, self._answerer, self._loads)

    def completed(self, unanswered: Sequence[Unanswered]) -> list[Unanswered]:
        """Return refused deployments with every reason, and releases that answer them.

        Degrees of parallelism and named kernels of attention conceal what other kernels lack: that
        is asked without them, and of another engine that a remedy names. Of releases that have a
        model's class those are named that leave no further reason; if all leave some, the reasons
        are given.
        """
        every, completed = dict[object, tuple[Refusal, ...]](), []
        for query in unanswered:
            key = query.about["model"], query.about["platform"], query.refusals
            if key not in every:  # the same at each b and L
                every[key] = self._every_refusal(query)
            completed.append(structs.replace(query, refusals=every[key]))
        return completed

    def told(self, query: Unanswered) -> "Told":
        """Return every reason of a refused query, before any remedy is looked for."""
        asked = query.about["model"], query.about["platform"]
        known = set(map(str, query.refusals))
        concealed = dict[str, Changes]()
        for changes in self._revealing():
            for reason in self.reasons(*asked, [changes])[0]:
                if reason not in known:
                    concealed.setdefault(reason, changes)
        known |= concealed.keys()
        remedies = [] if query.without_class else [why.remedy for why in query.refusals]
        others = {name: name for remedy in remedies for name in _OTHER_ENGINE.findall(remedy)}
        engines = {release: release.partition("==")[0] for release in query.with_class}
        working, lacking = self._tried(asked, others | engines, known)
        known.update(chain.from_iterable(reasons for _, reasons in lacking))
        return Told(known, concealed, working, lacking)

    def _every_refusal(self, query: Unanswered) -> tuple[Refusal, ...]:
        asked = query.about["model"], query.about["platform"]
        known, concealed, working, lacking = self.told(query)
        refusals = dict.fromkeys(self._with_degrees(query))
        for reason, changes in concealed.items():
            remedy = " or ".join(self._instead(asked, changes, known))
            remedy = f"{ELSEWHERE}, such as {remedy}" if remedy else ELSEWHERE
            refusals[Refusal("", "", f"T(N) is not known: {reason}", remedy)] = None
        for text, reasons in lacking:
            for reason in reasons:
                why = f"with {text}, T(N) is not known: {reason}"
                refusals[Refusal("", "", why, ELSEWHERE)] = None
        remedy = f"Name {' or '.join(working)}" if working or not lacking else ELSEWHERE
        return tuple(
            refusal._replace(remedy=remedy) if refusal in query.without_class else refusal
            for refusal in refusals
        )

    def _revealing(self) -> list[Changes]:
        """Return changes of the query without what conceals further reasons, the query first."""
        without: list[Changes] = [{}]
        if self._spec.attention:
            without.append(_OWN_ATTENTION)
        if any(getattr(self._spec, name) != value for name, value in _ONE_GPU.items()):
            without.append(_ONE_GPU | _OWN_ATTENTION)
        return without

    def _every_reason(self, asked: tuple[str, str], changes: Changes) -> list[str]:
        """Return why a changed query is not answered, without what conceals further reasons."""
        found = self.reasons(*asked, [{**part, **changes} for part in self._revealing()])
        return list(dict.fromkeys(chain.from_iterable(found)))

    def _instead(self, asked: tuple[str, str], changes: Changes, known: set[str]) -> list[str]:
        """Return options that answer a changed query, and leave of the query what is known."""
        changed, answerable, _ = self._changed(asked, changes)
        options = changed.options(answerable[0]) if answerable else []
        return [text for text, option in options if known.issuperset(self._left(asked, option))]

    def _left(self, asked: tuple[str, str], changes: Changes) -> set[str]:
        """Return every reason that a changed query is told."""
        changed, _, unanswered = self._changed(asked, changes)
        if unanswered:
            return changed.told(unanswered[0]).known
        return set(self.reasons(*asked, [changes])[0])

    def _changed(
        self, asked: tuple[str, str], changes: Changes
    ) -> tuple["Alternatives", list[Deployment], list[Unanswered]]:
        """Return a changed query about one model and platform, with what `expand` returns of it."""
        model, platform = asked
        about = {"models": (self._texts.get(model, model),), "platforms": (platform,), **changes}
        spec = structs.replace(self._spec, **about)
        changed = Alternatives(self._config, spec, self._answerer, self._loads)
        return changed, *expand(self._config, spec, self._loads)

    def _with_degrees(self, query: Unanswered) -> list[Refusal]:
        """Return the refusals of a query, with degrees of parallelism that are answered.

        The first that tp concerns names another tp, or where none holds the model more pipeline
        stages; of an unknown network, a platform that has one.
        """
        sheets, platform = self._config.platforms, query.about["platform"]
        degrees = {name: query.about["parallel"][name] for name in DEGREES}
        parallel = Parallel(**degrees)
        apart = set(node_refusals(parallel, platform, sheets[platform]))
        refusals = list(query.refusals)
        for place, refusal in enumerate(refusals):
            if refusal in apart:
                text = self._first(query, platform_options(sheets, platform, parallel))
                found = f"; or ask where it is: {text}" if text else ""
                refusals[place] = refusal._replace(remedy=refusal.remedy + found)
        uneven = next((why for why in query.refusals if why.key.startswith("tp")), None)
        if uneven:
            node = sheets[platform].joined_gpus
            others = tp_options(parallel, self._spec.gpus, node)
            text = self._first(query, [*others, *pp_options(parallel)], is_answered=True)
            found = f"; {text}" if text else ""
            refusals[refusals.index(uneven)] = uneven._replace(remedy=uneven.remedy + found)
        return refusals

    def _first(
        self, query: Unanswered, options: Sequence[Option], *, is_answered: bool = False
    ) -> str | None:
        """Return the words of the first option that answers a deployment, one that fits if any.

        They say so where none fits, and with `is_answered` that it is answered.
        """
        asked = query.about["model"], query.about["platform"]
        found = self.reasons(*asked, [changes for _, changes in options])
        answering = [option for option, why in zip(options, found, strict=True) if not why]
        answered = " is answered" if is_answered else ""
        for text, changes in answering:
            if self._fits(asked, changes):
                return text + answered
        return f"{answering[0][0]}{answered}, but does not fit" if answering else None

    def _fits(self, asked: tuple[str, str], changes: Changes) -> bool:
        """Return whether a changed query fits in memory at its first b and L, as far as known."""
        first = {"batch": self._spec.batch[:1], "context": self._spec.context[:1]}
        _, answerable, _ = self._changed(asked, {**first, **changes})
        return not any(query.memory and query.memory.fits is False for query in answerable)

    def _tried(
        self, asked: tuple[str, str], releases: Mapping[str, str], known: set[str]
    ) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Return the first option of each engine that leaves no further reason, and the others'.

        Parameters
        ----------
        asked
            The model and the platform.
        releases
            The engine of each release.
        """
        working, lacking = dict[str, str](), dict[str, tuple[str, list[str]]]()
        for release, engine in releases.items():
            if engine not in working:
                text, changes = _release(release)
                every = self._every_reason(asked, changes)
                further = [reason for reason in every if reason not in known]
                if further:
                    lacking.setdefault(engine, (text, further))
                else:
                    working[engine] = text
        unanswered = [lacking[engine] for engine in lacking if engine not in working]
        return list(working.values()), unanswered


class Told(NamedTuple):
    """The reasons of a refused query.

    `known` are all of them, `concealed` those that appear under changes of the query, `working` the
    releases that leave no further one, and `lacking` the further ones of other releases.
    """

    known: set[str]
    concealed: dict[str, Changes]
    working: list[str]
    lacking: list[tuple[str, list[str]]]


ELSEWHERE = "Choose a platform, release or format whose kernels and constants are known"
"""The remedy where T(N) of a deployment is unknown."""


def _release(text: str) -> tuple[str, Changes]:
    """Return the option that names a release, and what it changes."""
    return f"--moe {text}", {"moe": (text,)}


def _both(first: Sequence[Option], second: Sequence[Option]) -> list[Option]:
    """Return each option of one group together with each of another, where both can be given."""
    return [
        (f"{text} {other_text}", {**changes, **others})
        for (text, changes), (other_text, others) in product(first, second)
        if changes.keys().isdisjoint(others)
    ]


def _nearest(query: Deployment) -> list[str]:
    """Return the formats of weights other than a deployment's own, the nearest in bits first."""
    own = query.main.weights
    others = (name for name in FORMATS if name not in (own, "float16", "float32"))
    return sorted(others, key=lambda name: abs(FORMATS[name].bits - FORMATS[own].bits))
