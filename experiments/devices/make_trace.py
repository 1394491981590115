# SPDX-License-Identifier: Apache-2.0
"""Make the bundled trace: python experiments/devices/make_trace.py

200 phones of archipel.devices over six days, as long as FedScale's traces, in their form. A phone
of the last day begins again with the first one.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from archipel.devices.build import TIME_ZONES
from archipel.devices.classes import PHONES, Drawn
from archipel.devices.device import DAY
from archipel.devices.nights import Nights
from archipel.devices.trace import BUNDLED

PHONES_KEPT, DAYS, SEED = 200, 6, 0


def main() -> None:
    presence, end = Nights(Drawn(PHONES, SEED), TIME_ZONES), DAYS * DAY
    found: dict[str, Any] = {}
    for party in range(PHONES_KEPT):
        one, active, inactive = np.array([party]), list[int](), list[int]()
        at = float(presence.comes(one, 0.0)[0])
        while at < end:
            leaves = min(float(presence.until(one, at)[0]), end)
            if round(leaves) - round(at) >= 1:
                active.append(round(at))
                inactive.append(round(leaves))
            at = float(presence.comes(one, leaves)[0])
        duration = sum(b - a for a, b in zip(active, inactive, strict=True))
        found[str(party)] = {
            "duration": duration,
            "active": active,
            "inactive": inactive,
            "finish_time": int(end),
        }
    lines = ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in found.items())
    BUNDLED["phones"].write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
