# SPDX-License-Identifier: Apache-2.0
"""The scorecard: efficacy, efficiency, robustness, privacy.

Together, alone and pooled are compared as means over parties, each on its own test points. Over
all test points at once such a comparison misleads: models that parties trained alone know how
common each class is at their own place, which lifts their common AUC above that of any one model.

The energy is an estimate between two assumptions, not a measurement.

- Computing: 50 GFLOP per joule, a graphics card at full single-precision speed (V100: 52, A100: 49
  GFLOPS/W in Desislavov, Martínez-Plumed and Hernández-Orallo, Sustainable Computing 38, 2023,
  https://doi.org/10.1016/j.suscom.2023.100857), down to 1 GFLOP per joule, our assumption for an
  ordinary processor that small models keep far below its peak.
- Network: 0.011 kWh/GB, fixed lines in 2020 by the trend of Aslan, Mayers, Koomey and France,
  Journal of Industrial Ecology 22(4), 2018, https://doi.org/10.1111/jiec.12630 (0.06 in 2015,
  halved every two years), up to 0.12 kWh/GB, mobile networks in Finland in 2021 (Traficom, 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from archipel import measures
from archipel.devices.classes import BASE, NEWER, RATE_DOWN, RATE_UP
from archipel.exchange.leaving import Outgoing
from archipel.plain import plain

if TYPE_CHECKING:
    from rich.table import Table

    from archipel.scorecard.words import Row

JOULES_PER_FLOP = (1 / 50e9, 1 / 1e9)  # low, high
KWH_PER_GB = (0.06 * 0.5 ** ((2020 - 2015) / 2), 0.12)  # fixed lines in 2020, mobile in 2021
ASSUMPTIONS = (
    "computing takes 0.02 to 1 nJ per FLOP: a graphics card at full speed (Desislavov et al. "
    "2023) to an ordinary processor far below its peak (assumed)",
    f"the network takes {KWH_PER_GB[0]:.2g} to {KWH_PER_GB[1]:.2g} kWh per GB: fixed lines in 2020 "
    "(trend of Aslan et al. 2018) to mobile networks in 2021 (Traficom 2022)",
    "evaluation, idle machines, cooling and the making of the machines are left out",
)
ON_DEVICES = (
    "devices take the watts of their class while they train (phones: Arouj and Abdelmoniem 2022, "
    "Kim and Wu 2021)",
    f"their Wi-Fi takes {BASE:.2g} W and, per Mbit/s, {RATE_UP:.2g} W up and {RATE_DOWN:.2g} W "
    f"down (phones of 2012, Huang et al. 2012) or {NEWER:.0%} of it (newer ones, assumed); waking "
    "up, loading data and waiting are left out",
)
SHARES = (*measures.SHARES, "r2")  # differences are told in points: hundredths


_OF_A_SAMPLE = ("scored", "interval", "parties_interval")  # what is told of one alone


@dataclass(frozen=True)
class Spread:
    """A metric over parties, each on its own test points."""

    mean: float
    sd: float
    worst_tenth: float  # mean of it
    best: float
    parties: int  # that have a value


@dataclass(frozen=True)
class Efficacy:
    """How good the models are. Gains are positive where they are good, in `unit`."""

    metric: str
    larger_is_better: bool
    unit: str  # "points" (hundredths) or the metric's own
    over: str  # what the next two are taken over: all test points at once, or a mean over sites
    points: float | None  # of the common model at training parties
    own: float | None  # the same with each party's own model
    elsewhere: Spread | None  # each party's own model, trained alone, on these points
    central_points: float | None  # a model of all data in one place, on these points
    parties: Spread | None
    local: Spread | None  # each party alone
    central: Spread | None  # all data in one place
    new_points: float | None
    new_parties: Spread | None
    gain_over_local: float | None  # of means over parties
    gap_to_central: float | None  # what pooling the data would add
    parties_that_gain: int | None  # over their own model
    target: float | None
    absent: tuple[str, ...] = ()  # sites that earlier evaluations had in their mean
    warnings: tuple[str, ...] = ()  # what went wrong though the run ended
    scored: tuple[int, int] | None = None  # a sample of so many training parties, of how many
    interval: tuple[float, float] | None = None  # 95 %, of the own models' points, or the common's
    parties_interval: tuple[float, float] | None = None  # 95 %, of the mean over parties


@dataclass(frozen=True)
class Energy:
    """Watt-hours between two assumptions."""

    compute_low: float
    compute_high: float
    network_low: float
    network_high: float
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def low(self) -> float:
        """Of both together."""
        return self.compute_low + self.network_low

    @property
    def high(self) -> float:
        """Of both together."""
        return self.compute_high + self.network_high


@dataclass(frozen=True)
class Simulated:
    """What the simulated clock and the devices' batteries say."""

    seconds: float
    waiting: float  # of these, until enough devices were there
    low: float  # joules of all devices
    high: float
    seconds_to_target: float | None = None
    low_to_target: float | None = None  # joules
    high_to_target: float | None = None
    slow_share: float | None = None  # of the uploads that counted: the slowest fifth of parties'


@dataclass(frozen=True)
class Efficiency:
    """What all rounds cost that were done, also those after the last evaluation."""

    rounds: int
    planned: int
    parameters: int
    gradients: int  # of single examples
    flops_per_gradient: int  # forward and backward
    flops_note: str  # how they were counted
    flops: int
    bytes_up: int
    bytes_down: int
    bytes_up_per_party_round: float | None
    bytes_down_per_party_round: float | None
    seconds: float
    seconds_per_round: float | None
    rounds_to_target: float | None
    bytes_to_target: float | None
    energy: Energy
    simulated: Simulated | None = None  # None for a run without such a clock


@dataclass(frozen=True)
class Robustness:
    """Who was missing, and what became of it."""

    party_rounds: int  # sampled and needed
    arrived: int
    missing: dict[str, int]  # cause -> party-rounds, the most frequent first
    spare: int  # asked in excess and left out when enough had arrived
    below_quorum: int  # rounds that changed nothing
    waited: int  # further tries of rounds
    longest_absence: int  # rounds in a row that a party was sampled for and missed
    longest_absent: str | None  # who
    below_target: int | None  # evaluated rounds
    fell_back: int | None  # of these, after the target had been reached

    @property
    def share_arrived(self) -> float | None:
        """Of the party-rounds."""
        return self.arrived / self.party_rounds if self.party_rounds else None


@dataclass(frozen=True)
class Sent:
    """One tensor that a party sends or receives in a round."""

    way: str  # "up", "down" or "to neighbours"
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Promise:
    """(ε, δ) as it was kept so far, for the unit that spent the most."""

    unit: str  # "record" or "party"
    epsilon: float  # spent
    planned: float | None  # for all rounds; None where it is not finite
    delta: float
    trust: str
    clip: float | str  # or "adaptive"
    noise: float  # z: deviation over clip, the least of all parties
    accountant: str
    neighbours: str
    sampling: str
    simulated: bool  # whether noise was drawn from the seed: then it protects nobody
    found: float  # true positives of the best membership attack at 1 % false ones, at most
    curve: tuple[tuple[int, float], ...]  # ε after so many rounds that count
    correlated: str | None = None  # "banded:8", "tree"; None where noise is independent
    mechanism: str = "gaussian"  # what noise is on gradients by record; else on uploads
    honest: int | None = None  # parties of every sum that must keep their share of noise secret


@dataclass(frozen=True)
class Privacy:
    """What leaves a party, and who may look at it."""

    server: str  # what its code asks for: "sums", "individuals", or "none" where there is no server
    sees: str
    messages: tuple[Sent, ...]
    left: tuple[Outgoing, ...]  # between sites: all numbers that left one that told its counts
    epsilon: float | None
    guarantee: str
    wire: tuple[str, ...] = ()  # in words: what messages pass, the rule, how sums are made
    promise: Promise | None = None  # None where nothing is promised


@dataclass(frozen=True, repr=False)
class Scorecard:
    """Four views of one run."""

    efficacy: Efficacy
    efficiency: Efficiency
    robustness: Robustness
    privacy: Privacy

    def to_json(self) -> dict[str, Any]:
        """Return plain values, None where a number is not finite."""
        card: dict[str, Any] = plain(asdict(self))
        energy = self.efficiency.energy
        card["efficiency"]["energy"] |= plain({"low": energy.low, "high": energy.high})
        card["robustness"]["share_arrived"] = self.robustness.share_arrived
        if self.efficacy.scored is None:  # everybody was scored, and nothing is estimated
            for name in _OF_A_SAMPLE:
                del card["efficacy"][name]
        if self.efficiency.simulated is None:  # as before there was a clock
            del card["efficiency"]["simulated"]
        return card

    @classmethod
    def of_json(cls, card: Mapping[str, Any]) -> Self:
        """A scorecard from its plain values, as a journal has them."""
        told = {name: dict(part) for name, part in card.items()}
        efficacy, efficiency = told["efficacy"], told["efficiency"]
        for name in ("elsewhere", "parties", "local", "central", "new_parties"):
            efficacy[name] = None if efficacy[name] is None else Spread(**efficacy[name])
        for name in ("absent", "warnings"):
            efficacy[name] = tuple(efficacy[name])
        for name in _OF_A_SAMPLE:
            efficacy[name] = tuple(efficacy[name]) if efficacy.get(name) else None
        energy = {k: v for k, v in efficiency["energy"].items() if k not in ("low", "high")}
        efficiency["energy"] = Energy(**{**energy, "assumptions": tuple(energy["assumptions"])})
        if simulated := efficiency.get("simulated"):
            efficiency["simulated"] = Simulated(**simulated)
        del told["robustness"]["share_arrived"]
        sent = [{**each, "shape": tuple(each["shape"])} for each in told["privacy"]["messages"]]
        told["privacy"]["messages"] = tuple(Sent(**each) for each in sent)
        told["privacy"]["left"] = tuple(Outgoing(**each) for each in told["privacy"]["left"])
        told["privacy"]["wire"] = tuple(told["privacy"].get("wire", ()))  # older ones lack it
        if promise := told["privacy"].get("promise"):
            curve = tuple((int(t), float(e)) for t, e in promise["curve"])
            told["privacy"]["promise"] = Promise(**{**promise, "curve": curve})
        return cls(
            Efficacy(**efficacy),
            Efficiency(**efficiency),
            Robustness(**told["robustness"]),
            Privacy(**told["privacy"]),
        )

    def rows(self) -> list[Row]:
        """Return the lines to print, without what does not apply."""
        from archipel.scorecard.words import rows

        return rows(self)

    def table(self) -> Table:
        """Return a table for the terminal."""
        from archipel.scorecard.words import table

        return table(self)

    def __rich__(self) -> Table:
        return self.table()

    def __repr__(self) -> str:
        from archipel.report.tables import as_text

        return as_text(self.table())

    def _repr_html_(self) -> str:
        from archipel.report.tables import html
        from archipel.scorecard.words import page

        return html(page(self))
