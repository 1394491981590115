# SPDX-License-Identifier: Apache-2.0
"""The adversary that a study's [adversary] says: who attacks, from when on, and how."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from archipel.adversaries.adversary import Adversary
from archipel.errors import ArchipelError, unknown
from archipel.study import fields, plugins
from archipel.study.sections import Attackers, keys

_NEEDS = ("poisoned", "door", "sent", "telling", "colluding")  # an attack has one of these


def adversary_of(section: Attackers, base: Path) -> Adversary | None:
    """Make what [adversary] says; None where it says nothing."""
    if section == Attackers():
        return None
    if section.attack is None:
        raise ArchipelError('adversary.attack is missing: name one, such as "alie".')
    if section.parties is None:
        raise ArchipelError("adversary.parties is missing: give a share, a number, or names.")
    cls: Any = plugins.find("adversary", section.attack, base)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ArchipelError(
            f'adversary.attack = "{section.attack}": is no dataclass; make it one, '
            "@dataclass(frozen=True)."
        )
    if not any(hasattr(cls, each) for each in _NEEDS):
        raise ArchipelError(
            f'adversary.attack = "{section.attack}": {cls.__name__} has none of '
            f"{', '.join(_NEEDS)}, by which an attack is done; give it one."
        )
    for key in section.given:
        if key not in fields.hints(cls):
            known = {*fields.hints(cls), *keys("adversary")}
            raise unknown("key of [adversary]", key, known)
    attack = fields.build("adversary", cls, section.given)
    parties: Any = section.parties
    parties = tuple(parties) if isinstance(parties, list) else parties
    return Adversary(attack, parties, section.first, section.last)


def written_attack(section: Attackers, base: Path) -> dict[str, Any]:
    """The fields of the attack, each with its value."""
    made = adversary_of(section, base)
    assert made is not None
    attack = made.attack
    return {
        name: fields.write(getattr(attack, name))
        for name, hint in fields.hints(type(attack)).items()
        if fields.holds(hint, getattr(attack, name))
    }
