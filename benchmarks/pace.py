# SPDX-License-Identifier: Apache-2.0
"""The clock of a candidate: warm up, then run timed bursts of rounds, one JSON line per burst.

With `--serve` a candidate answers each line {"seconds", "rounds", "start"} on standard input;
without, it runs one burst and ends. Frameworks that own their loop over rounds call `next` on the
generator between two rounds, the others iterate over it. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from workloads import WORKLOADS, Workload


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="at most, in the one burst")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the one burst")
    parser.add_argument("--warm", type=int, default=None, help="rounds before the clock starts")
    parser.add_argument("--serve", action="store_true", help="wait for bursts on standard input")
    return parser.parse_args()


class Pace:
    """Yield round numbers and time what happens between two of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.workload: Workload = WORKLOADS[options.workload]
        self.warm = options.warm
        if self.warm is None:
            self.warm = 1 if self.workload.rounds_per_burst == 1 else 3
        self._answers = _private_stdout()

    def say(self, **fields: object) -> None:
        self._answers.write(json.dumps(fields) + "\n")
        self._answers.flush()

    def rounds(self, loss: Callable[[], float] | None = None) -> Iterator[int]:
        """Yield the round to run next; `loss` is asked for once, after warm-up, untimed."""
        began = time.perf_counter()
        yield from range(self.warm)
        ready = {"warm_seconds": time.perf_counter() - began, "loss": loss() if loss else None}
        if not self.options.serve:
            times = yield from self._burst(self.options.seconds, self.options.rounds, self.warm)
            self.say(workload=self.workload.name, seconds=times, **ready)
            return
        self.say(**ready)
        for line in sys.stdin:
            order = json.loads(line)
            times = yield from self._burst(order["seconds"], order["rounds"], order["start"])
            self.say(seconds=times)

    def _burst(self, seconds: float, rounds: int, start: int) -> Iterator[int]:
        times: list[float] = []
        while not times or (sum(times) < seconds and len(times) < rounds):
            began = time.perf_counter()
            yield start + len(times)
            times.append(time.perf_counter() - began)
        return times


def _private_stdout() -> TextIO:
    """Keep standard output for the answers; whatever else prints goes to standard error."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
