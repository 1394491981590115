# SPDX-License-Identifier: Apache-2.0
"""Computing on a graphics card: gradients, local descent and outputs go there, vectors come back.

What an algorithm and its server do with vectors is little work and stays in main memory, so that
they know of no device. The data is on the device once; a round moves every party's vector there
and back.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor

from archipel.data.federation import Federation
from archipel.engines.plan import Plan, ways
from archipel.errors import ArchipelError
from archipel.models.model import Model, OneByOne, Points, Steps, Vmapped, Way

CPU = "cpu"
BLOCK = 64  # parties at a time


def check_device(name: str, workers: int | None = None) -> None:
    """Refuse a device that torch does not have here, and several processes on one."""
    kind = name.partition(":")[0]
    if kind not in (CPU, "cuda", "mps"):
        raise ArchipelError(f"device = '{name}': give cpu, cuda (cuda:1 for the second) or mps.")
    if kind == CPU:
        return
    has = torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()
    count = torch.cuda.device_count() if kind == "cuda" else 1
    number = name.partition(":")[2] or "0"
    if not has or not number.isdecimal() or int(number) >= count:
        raise ArchipelError(
            f"device = '{name}': this torch ({torch.__version__}) has no {name} on this machine; "
            "leave the device out, or install a torch that has it."
        )
    if workers is not None and workers > 1:
        raise ArchipelError(
            f"workers = {workers}: on {name} one process does it all; leave workers out."
        )


def on_device(model: Model, data: Federation, name: str) -> tuple[Model, dict[str, Way]]:
    """The model, computing there, and the ways that are right for it there."""
    device, there = torch.device(name), copy.copy(model)
    module = copy.deepcopy(model.module).to(device)
    moved = Model(module, model.loss_function)
    held = Held(data, device)
    here, single = model.one, OneByOne(moved)
    there._one = cast(OneByOne, OneAway(single, held, here))
    candidates: dict[str, Way] = {"one": there.one}
    if model.separable:
        candidates["vmapped"] = Away(Vmapped(moved), held)
    return there, ways(there, data, candidates=candidates)


def plan_for(right: dict[str, Way]) -> Plan:
    """All in one process: in stacks where that is right."""
    return Plan("vmapped", BLOCK, 1) if "vmapped" in right else Plan("one", BLOCK, 1)


class Held:
    """A federation's points on a device, moved once."""

    def __init__(self, data: Federation, device: torch.device) -> None:
        self.device = device
        self._x, self._y = data.x, data.y
        self._there: tuple[Tensor, Tensor] | None = None

    def move(self, value: Any) -> Any:
        """A tensor there; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if value is self._x or value is self._y:
            if self._there is None:
                self._there = self._x.to(self.device), self._y.to(self.device)
            return self._there[0 if value is self._x else 1]
        return value.to(self.device)

    def moved(self, several: Any) -> Any:
        """The same of the fields of a named tuple."""
        return type(several)(*map(self.move, several))


class Away:
    """A way whose work is done on a device."""

    def __init__(self, way: Way, held: Held) -> None:
        self._way, self._held = way, held

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        return self._run(self._way.grad, w, points, buffers)

    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        return self._run(self._way.loss, w, points, buffers)

    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor:
        return self._run(self._way.descend, w, steps, buffers)

    def _run(self, call: Any, w: Tensor, given: Any, buffers: Tensor | None) -> Tensor:
        there: Any = self._held.move(buffers)
        out: Tensor = call(self._held.move(w), self._held.moved(given), there)
        if buffers is not None and there is not buffers:
            buffers.copy_(there)
        return out.to(w.device)


class OneAway(Away):
    """One party at a time on a device, with all that a model is asked."""

    def __init__(self, one: OneByOne, held: Held, here: OneByOne) -> None:
        super().__init__(one, held)
        self._one, self._here = one, here

    def outputs(self, w: Tensor, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        return self._use(self._one.outputs, w, x, buffers)

    def features(self, w: Tensor, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        return self._use(self._one.features, w, x, buffers)

    def settle(self, w: Tensor, x: Tensor) -> Tensor:
        return self._one.settle(self._held.move(w), self._held.move(x)).to(w.device)

    def draws(self, x: Tensor) -> bool:
        """Found in main memory, where one can see whether the generator moved."""
        return self._here.draws(x)

    def _use(self, call: Any, w: Tensor, x: Tensor, buffers: Tensor | None) -> Tensor:
        out: Tensor = call(*map(self._held.move, (w, x, buffers)))
        return out.to(w.device)
