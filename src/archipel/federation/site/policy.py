# SPDX-License-Identifier: Apache-2.0
"""A site's own rules: what it takes part in, whatever a study or a coordinator says.

They lie in `policy.toml` in the site's folder, and a key that is not there has its careful default.
A study is judged by them when it is reviewed and approved, and again whenever something would
leave: an upload by the records it was computed from, a score by how many there were, a sum by the
rows behind it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import floor, log10, nan
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import tomli_w

from archipel.errors import ArchipelError, BudgetSpent, clean, unknown
from archipel.store.files import write
from archipel.study.fields import build, hints, shown
from archipel.study.fields import read as read_value

if TYPE_CHECKING:
    from archipel.core import Vector
    from archipel.federation.site.exposure import Exposure
    from archipel.metrics import Guarded
    from archipel.models.model import Model

POLICY = "policy.toml"  # in a site's folder
_SUMS = "sums"  # a word of `counts`
SPENT = "spent (its privacy budget)"  # what a coordinator is told of it
_EXACT = 15  # digits: as they are

_random = SystemRandom()


class Withheld(ArchipelError):
    """The site's own policy says no: nothing left."""


class Overspent(Withheld, BudgetSpent):
    """The site's privacy budget does not bear it."""


def _key(default: Any, about: str) -> Any:
    """A key of the policy, with the words that explain it."""
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Policy:
    """What a site takes part in; every key has a careful default."""

    least_rows: int = _key(20, "training rows of this site")
    least_test_rows: int = _key(10, "test rows of this site; below, no score leaves")
    least_batch: int = _key(8, "records that one upload is computed from")
    least_sites: int = _key(3, "sites in a mean that others see")
    least_cell: int = _key(5, "records behind a sum, or with one of a column's values")
    scores: int = _key(50, "models that are scored in one study, at most")
    digits: int = _key(
        3, "decimals of a score, fewer where two records move it by more; 15: all of them"
    )
    rounds: int = _key(10_000, "of one study, at most")
    megabytes: float = _key(1000.0, "of numbers that leave for one study, at most")
    counts: bool | Literal["sums"] = _key(
        False,
        'whether numbers of rows leave, but for sums of columns; "sums": in sums over sites alone',
    )
    neighbours: bool = _key(False, "whether peers may see vectors of this site one by one")
    statistics: bool = _key(True, "whether BatchNorm's means and variances may leave")
    algorithms: tuple[str, ...] = _key((), "that may run here; any where none is named")
    models: tuple[str, ...] = _key((), "that may be trained here; any where none is named")
    private: bool = _key(False, "whether only studies that promise privacy may run here")
    epsilon: float | None = _key(
        None, "privacy budget of each table over all studies, for every record; none: no limit"
    )
    delta: float = _key(1e-5, "at which that budget is counted")
    confirmed: bool = _key(
        False, "whether sites whose keys nobody here has confirmed are refused in sums"
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not value >= 0:
                raise ArchipelError(f"policy.{each.name} = {value}: give a number from 0.")
        if not 0 < self.delta < 1:
            raise ArchipelError(f"policy.delta = {self.delta}: give a number between 0 and 1.")

    @classmethod
    def open(cls) -> Self:
        """Allows all that a study may ask: for rehearsals, where no data needs protection."""
        return cls(0, 0, 0, 0, 0, 1 << 53, _EXACT, 1 << 53, 1e12, True, True)

    # -- the file ----------------------------------------------------------------------------------

    @classmethod
    def read(cls, home: Path) -> Self:
        """The policy of a site's folder; careful where nothing is set."""
        try:
            text = (home / POLICY).read_text()
            given = tomllib.loads(text)
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
            raise ArchipelError(
                f"'{home / POLICY}': cannot be read ({error}); correct it, nothing leaves before."
            ) from None
        made: Self = build("policy", cls, given)
        return made

    def write(self, home: Path) -> None:
        write(home / POLICY, self.toml().encode())

    def toml(self) -> str:
        return tomli_w.dumps({key: _plain(value) for key, value in asdict(self).items()})

    def changed(self, changes: Iterable[str]) -> Self:
        """The policy with keys set, `["least_rows=50", "counts=true"]`."""
        known, values = hints(Policy), {}
        for change in changes:
            key, found, text = change.partition("=")
            key = key.strip()
            if not found:
                raise ArchipelError(f"'{change}': write KEY=VALUE, such as least_rows=50.")
            if key not in known:
                raise unknown("key of the policy", key, known)
            values[key] = read_value("policy", key, known[key], _value(text.strip()))
        return replace(self, **values)

    # -- what it says of a study -------------------------------------------------------------------

    def judge(self, study: Exposure) -> list[Rule]:
        """Every rule that bears on a study, and whether it is met."""
        rules = [
            self._at_least("least_rows", study.rows, "training rows here"),
            self._batch(study),
            self._sites(study),
            self._at_most("scores", study.scored, "models are scored"),
            self._at_most("rounds", study.rounds, "rounds"),
            Rule(
                "megabytes",
                study.bytes <= self.megabytes * 1e6,
                f"at most {study.bytes / 1e6:.3g} of {self.megabytes:g} MB leave",
            ),
            Rule(
                "counts",
                self._lets_count(study),
                _counted(study),
            ),
            self._among("algorithms", study.algorithm),
            self._among("models", study.model),
        ]
        if study.statistics:
            said = f"{study.statistics} means and variances of BatchNorm leave every round"
            rules.append(Rule("statistics", self.statistics, said))
        if study.test_rows is not None and 0 < study.test_rows < self.least_test_rows:
            said = f"{study.test_rows} test rows here, so no score leaves"
            rules.append(Rule("least_test_rows", True, said))
        return [rule for rule in [*rules, *self._privacy(study)] if rule is not None]

    def _lets_count(self, study: Exposure) -> bool:
        """Whether numbers of rows may leave in the way in which they would."""
        in_sums = self.counts == _SUMS and study.counts_in_sums
        return self.tells_counts or in_sums or not study.counts

    @property
    def tells_counts(self) -> bool:
        """Whether this site's own numbers of rows may leave by themselves."""
        return self.counts is True

    def _privacy(self, study: Exposure) -> Iterator[Rule]:
        """What a study promises, and whether this site's budget bears it."""
        if study.unkept:
            yield Rule("private", False, study.unkept)
        elif study.promise is not None:
            yield Rule("private", True, f"the study promises privacy by {study.promise.unit}")
        elif self.private:
            yield Rule("private", False, "the study promises no privacy")
        if self.epsilon is None or study.unkept:
            return
        if study.rows is not None and self.delta * study.rows >= 1:
            least = f"{study.rows} training rows here, so give less than {1 / study.rows:.1g}"
            yield Rule("delta", False, f"{least}, or else one of them may be published")
        budget = f"at most {self.epsilon:g} for this table, at δ = {self.delta:g}"
        if study.promise is None:
            said = f"the study promises no privacy, so no ε is enough for it, {budget}"
            yield Rule("epsilon", False, said)
        elif study.planned is None:
            said = f"what it costs is not known before a table is bound, {budget}"
            yield Rule("epsilon", True, said)
        else:
            account = study.account.without_own
            before, to_come = account.epsilon(self.delta), account.to_come
            after = account.epsilon(self.delta, [*to_come, *study.planned])
            said = f"ε = {before:.3g} was spent by other studies"
            if to_come:
                names = ", ".join(clean(each.study) for each in account.planned)
                whole = account.epsilon(self.delta, to_come)
                said += f" and is {whole:.3g} with what approved ones still plan ({names})"
            said += f", {after:.3g} with all rounds of this one, {budget}"
            yield Rule("epsilon", after <= self.epsilon, said)

    def refuse(self, study: Exposure) -> None:
        """Say which rules a study does not meet."""
        broken = [rule for rule in self.judge(study) if not rule.met]
        if broken:
            why = "; ".join(f"{rule.key} = {self._shown(rule.key)}: {rule.said}" for rule in broken)
            keys = " ".join(f"{rule.key}=..." for rule in broken)
            spent = any(rule.key == "epsilon" for rule in broken)
            leave = ""
            if spent and (planned := study.account.planned):
                leave = f" leave one with 'archipel site leave {clean(planned[-1].study)}',"
            kind = Overspent if spent else Withheld
            raise kind(
                f"study {clean(study.name)}: this site's policy is not met: {why}. Ask for another "
                f"study,{leave} or change the policy with 'archipel site policy set {keys}'."
            )

    def _shown(self, key: str) -> str:
        return shown(_plain(getattr(self, key)))

    def _at_least(self, key: str, found: int | None, what: str) -> Rule:
        least = getattr(self, key)
        if found is None:
            return Rule(key, True, f"at least {least} {what}: not known before a table is bound")
        return Rule(key, found >= least, f"{found} {what}, at least {least}")

    def _at_most(self, key: str, found: int, what: str) -> Rule:
        most = getattr(self, key)
        return Rule(key, found <= most, f"{found} {what}, at most {most}")

    def _batch(self, study: Exposure) -> Rule:
        if study.records is None:
            said = "an upload is computed from all rows" if study.is_known else _MEASURED
            return Rule("least_batch", True, said)
        said = f"{study.records} records behind an upload, at least {self.least_batch}"
        return Rule("least_batch", study.records >= self.least_batch, said)

    def _sites(self, study: Exposure) -> Rule:
        if study.neighbours:
            who = "all members may see" if study.learned else "neighbours see"
            return Rule("neighbours", self.neighbours, f"{who} this site's vectors as they are")
        sites = f"{study.sites} site{'' if study.sites == 1 else 's'}"
        said = f"a round counts with {sites}, at least {self.least_sites} ({study.counted})"
        return Rule("least_sites", study.sites >= self.least_sites, said)

    def _among(self, key: str, name: str) -> Rule | None:
        allowed = getattr(self, key)
        if not allowed:
            return None
        return Rule(key, name in allowed, f"{clean(name)}, among {', '.join(map(clean, allowed))}")

    # -- what it says of what would leave ----------------------------------------------------------

    @property
    def is_exact(self) -> bool:
        """Whether scores leave as they are."""
        return self.digits >= _EXACT

    def check_upload(self, records: int, rows: int) -> None:
        """Refuse an upload that was computed from too few records; 0: from none, now."""
        if rows < self.least_rows:
            raise Withheld(
                f"{rows} training rows: this site's policy wants {self.least_rows} (least_rows), "
                "so nothing is sent."
            )
        if 0 < records < min(self.least_batch, rows):
            raise Withheld(
                f"an upload was computed from {records} records: this site's policy wants "
                f"{self.least_batch} (least_batch), so it is not sent."
            )

    def check_model(self, model: Model, w: Vector) -> None:
        """Refuse to train a model that looks as if it was made to read single records."""
        from archipel.attacks.imprint import imprinted

        if imprinted(model, w):
            raise Withheld(
                "the coordinator sent a model whose first layer measures the same with most of its "
                "units, as one does that is made to read single records from an upload: nothing is "
                "sent; ask who runs the study."
            )

    def rounded(
        self, scores: Mapping[str, float], guarded: Mapping[str, Guarded], points: int
    ) -> dict[str, float]:
        """Scores as they may leave: in steps of two records or more, up or down at random.

        Whether a score is beyond an edge between two steps would tell of one record, exactly; a
        model can be made for every such question. At random, many of them tell little.
        """
        if points < self.least_test_rows:
            return {}
        if self.is_exact:
            return dict(scores)
        least = 10.0**-self.digits
        rounded = {
            name: _coarse(each.value, max(2 * each.moved, least), _random.random())
            for name, each in guarded.items()
        }
        return {name: rounded.get(name, nan) for name in scores}


@dataclass(frozen=True)
class Standing:
    """The policy of a site's folder as it is at each moment: a change holds at once."""

    home: Path
    study: Exposure | None = None
    counts: bool = False  # whether numbers of rows leave, as it was when the study was begun

    @property
    def scores(self) -> int:
        return self._now().scores

    @property
    def least(self) -> int:
        return self._now().least_sites

    def check_upload(self, records: int, rows: int) -> None:
        self._now().check_upload(records, rows)

    def check_model(self, model: Model, w: Vector) -> None:
        self._now().check_model(model, w)

    def rounded(
        self, scores: Mapping[str, float], guarded: Mapping[str, Guarded], points: int
    ) -> dict[str, float]:
        return self._now().rounded(scores, guarded, points)

    def _now(self) -> Policy:
        policy = Policy.read(self.home)
        if self.study is not None:
            policy.refuse(self.study)
        if self.counts and not policy.tells_counts:
            now = shown(policy.counts)
            raise Withheld(f"counts = {now}: numbers of rows left so far; it begins without them.")
        return policy


class Rule(NamedTuple):
    """One rule of a policy, held against a study."""

    key: str
    met: bool
    said: str  # what the study does, with its numbers


_MEASURED = "how many records are behind an upload is not known from the study: measured, each time"


def about() -> dict[str, str]:
    """What each key is for."""
    return {each.name: str(each.metadata["about"]) for each in fields(Policy)}


def _counted(study: Exposure) -> str:
    """How numbers of rows leave for a study."""
    if study.counts_in_sums:
        return (
            "the sum of the sites' numbers of rows leaves every round, for the algorithm weighs "
            "sites by them; from two sums, one site's"
        )
    if study.counts:
        return "numbers of rows leave, for the algorithm weighs sites by them"
    return "the algorithm needs no number of rows"


def _coarse(value: float, least: float, draw: float) -> float:
    """Round up or down to a step of 1, 2 or 5 times a power of ten, from `least` on.

    With a draw from 0 to 1 it is rounded up as often as it is far from the step below.

    >>> _coarse(0.8347, 0.013, 0.5), _coarse(0.8347, 0.013, 0.1), _coarse(412.0, 260.0, 0.5)
    (0.84, 0.82, 500.0)
    """
    power = floor(log10(least) + 1e-9)
    step = next(s for s in (1, 2, 5, 10) if s * 10.0**power >= least * (1 - 1e-9)) * 10.0**power
    return float(f"{floor(value / step + draw) * step:.12g}")


def _plain(value: Any) -> Any:
    if value is None:
        return "none"
    return list(value) if isinstance(value, tuple) else value


def _value(text: str) -> Any:
    """A value as TOML writes it; words without quotes are texts, and with commas lists."""
    if text in ("none", _SUMS):
        return text
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, ValueError):
        return [part.strip() for part in text.split(",") if part.strip()]
