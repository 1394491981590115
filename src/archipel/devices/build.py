# SPDX-License-Identifier: Apache-2.0
"""The devices that a study names, checked before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from archipel.devices.classes import PHONES, Device, Drawn
from archipel.devices.device import Always, Devices, Presence
from archipel.devices.nights import CONDITIONS, Nights
from archipel.devices.trace import BUNDLED, Trace, read
from archipel.errors import ArchipelError, unknown
from archipel.rng import Ints

NAMED = {"phones": PHONES}
TIME_ZONES = (-5.0, 1.0, 8.0)  # hours ahead of UTC, unless a study says otherwise


def devices_of(options: Mapping[str, Any], seed: int) -> Devices | None:
    """The devices that a run's options describe; None for a run without a clock."""
    given, trace = options.get("devices"), options.get("trace")
    if given is None and trace is None and not options.get("clock"):
        for name in ("pace", "patience", "time_zones"):
            if options.get(name):
                raise ArchipelError(
                    f"simulate.{name}: belongs to devices on a clock; give simulate.devices, such "
                    "as 'phones', or leave it out."
                )
        return None
    if options.get("clock") is False:
        raise ArchipelError(
            "simulate.clock = false: devices and traces run by the clock; leave it out, or them."
        )
    if isinstance(options.get("availability"), str):
        raise ArchipelError(
            f"simulate.availability = '{options['availability']}': counts rounds, and the clock "
            "counts seconds; give devices that come and go, or a share."
        )
    speed = options.get("speed")
    if given is not None and speed is not None:
        raise ArchipelError(
            f"simulate.speed = {speed:g}: simulate.devices have speeds of their own; leave one out."
        )
    if given is None and speed is None:
        key = "clock = true" if trace is None else f"trace = '{trace}'"
        raise ArchipelError(
            f"simulate.{key}: nobody takes time; give simulate.devices, such as 'phones', or "
            "simulate.speed, in examples per second."
        )
    if given is None:
        spread = float(options.get("speed_spread") or 0.0)
        assert speed is not None
        given = {"party": Device(1.0, seconds=1 / float(speed), spread=spread)}
    speeds = Drawn(_classes(given), seed)
    return Devices(speeds, _presence(speeds, trace, options.get("time_zones")))


def _presence(speeds: Drawn, trace: str | Path | None, zones: Sequence[float] | None) -> Presence:
    if trace is not None:
        if zones:
            raise ArchipelError(
                "simulate.time_zones: a trace has its own nights; leave out one of the two."
            )
        return read(BUNDLED.get(str(trace), Path(trace)))
    for zone in zones or ():
        if not -12 <= zone <= 14:
            raise ArchipelError(
                f"simulate.time_zones = {list(zones or ())}: give hours ahead of UTC, from -12 to "
                "14."
            )
    if any(getattr(kind, name) for kind in speeds.classes.values() for name in CONDITIONS):
        return Nights(speeds, tuple(zones or TIME_ZONES))
    if zones:
        raise ArchipelError(
            "simulate.time_zones: these devices are always there; give them minutes of idle, "
            "plugged or wifi, or leave it out."
        )
    return Always()


def _classes(given: str | Mapping[str, Any]) -> Mapping[str, Device]:
    if isinstance(given, str):
        if given not in NAMED:
            raise unknown("simulate.devices", given, NAMED)
        return NAMED[given]
    if not given:
        raise ArchipelError("simulate.devices: has no classes; give one, or a name, 'phones'.")
    known = [each.name for each in fields(Device)]
    found = {}
    for name, told in given.items():
        if isinstance(told, Device):
            found[name] = told
            continue
        values = {key: value for key, value in told.items() if value is not None}
        for key in values:
            if key not in known:
                raise unknown(f"simulate.devices.{name}", key, known)
        if "share" not in values:
            raise ArchipelError(f"simulate.devices.{name}: give its share of the parties.")
        pairs: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        try:
            found[name] = Device(**pairs)
        except ArchipelError as error:
            raise ArchipelError(f"simulate.devices.{name}.{error}") from None
    return found


def check_ever(devices: Devices, eligible: Ints, needed: int) -> None:
    """Refuse a trace in which too few parties for any round are ever there."""
    if not isinstance(devices.presence, Trace):
        return
    ever = int(np.count_nonzero(devices.presence.ever(eligible)))
    if ever < max(needed, 1):
        raise ArchipelError(
            f"simulate.trace: {ever} of {len(eligible)} parties are ever there, and a round needs "
            f"{max(needed, 1)}; give a trace with more, or lower round.quorum."
        )
