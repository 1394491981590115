# SPDX-License-Identifier: Apache-2.0
"""A member that lies: letters of known kinds, fields and dtypes, with contents that nobody expects.

It does what a member does, so that a study gets to its later states, and says other things in
between. What it says is drawn from a seed; what others do at that moment is not.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from archipel.engines.network.in_memory import MemoryLink
from archipel.engines.network.letters import KINDS, BadLetter, Letter, Sealed
from archipel.engines.network.transport import Cut, Partials, Refused

WHOLE = [0, 1, 2, 3, -1, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)]
REAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, 5e-324, 1e6, 9e11, 1e12, 1e13, 1e30, -1e30, 1e308,
        2.0**31, 2.0**53, 2.0**63, math.nan, math.inf, -math.inf]  # fmt: skip
TEXT = ["", "\0", "-1", "None", "accuracy", "loss", "trains, 1 gradients", "waits", "done",
        "\x1b[2J\nround 1", "../../etc", "ä" * 200, "9" * 5000]  # fmt: skip
LONG = ["1x" * 200_000, "=" * 300_000, "\n" * 500_000]
NOT_BEGUN = "not begun"  # a state in which every question is held
DTYPES = [torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]

_SOON = 0.05  # seconds after which a question that is held is cut
_ANSWERED = 60.0  # seconds in which every other letter is answered, on a busy machine


class Lies:
    """Draws what a member says instead of what is right."""

    def __init__(self, seed: Any) -> None:
        self.draws = random.Random(seed)

    def letter(self, kind: str, right: Letter | None, study: str) -> Letter:
        """A letter of a kind; like one that was right, but for some of it."""
        draws, types = self.draws, KINDS[kind]
        if right is None:
            fields = {name: self._value(allowed, None) for name, allowed in types.items()}
            if "study" in fields and draws.random() < 0.9:
                fields["study"] = study
            return Letter(kind, fields, self._arrays([torch.zeros(3)]))
        fields, arrays = dict(right.fields), list(right.arrays)
        changed = draws.sample(sorted(types), min(len(types), draws.randrange(3)))
        for name in changed:
            if name != "study" or draws.random() < 0.1:
                fields[name] = self._value(types[name], fields.get(name))
        if draws.random() < 0.5:
            arrays = self._arrays(arrays)
        return Letter(kind, fields, arrays)

    def spoilt(self, right: Letter) -> Letter:
        """The right letter with arrays of the right form and other numbers."""
        arrays = [self._numbers(array) for array in right.arrays]
        return Letter(right.kind, right.fields, arrays)

    # -- fields ------------------------------------------------------------------------------------

    def _value(self, allowed: tuple[type, ...], right: Any) -> Any:
        draws, kind = self.draws, self.draws.choice(allowed)
        if kind is int:
            near = [right - 1, right + 1] if type(right) is int and abs(right) < 1 << 62 else []
            return draws.choice(WHOLE + 3 * near)
        if kind is float:
            return draws.choice(REAL)
        if kind is str:
            return draws.choice(LONG if draws.random() < 0.02 else TEXT)
        if kind is bytes:
            return draws.choice([b"", draws.randbytes(32), draws.randbytes(64), bytes(100_000)])
        if kind is bool:
            return draws.random() < 0.5
        if kind is list:
            few = [self._plain() for _ in range(draws.randrange(4))]
            return draws.choice([few, [draws.choice(WHOLE)] * 4000])
        if kind is dict:
            return self._map(right if type(right) is dict else {})
        return None

    def _plain(self) -> Any:
        return self._value((self.draws.choice([int, float, str, bytes, bool, type(None)]),), None)

    def _map(self, right: dict[str, Any]) -> dict[str, Any]:
        draws, found = self.draws, dict(right)
        way = draws.randrange(6)
        if way == 0:
            return {}
        if way == 1:
            value = self._plain()
            return {str(i): value for i in range(4000 if type(value) in (int, float) else 2)}
        if way == 2 and found:
            del found[draws.choice(sorted(found))]
            return found
        if way == 3:
            return found | {draws.choice(TEXT): self._plain()}
        for name in found:
            if draws.random() < 0.5:
                types = (type(found[name]),) if way == 4 else (int, float, str, type(None))
                found[name] = self._value(types, found[name])
        return found

    # -- arrays ------------------------------------------------------------------------------------

    def _arrays(self, right: list[Tensor]) -> list[Tensor]:
        draws = self.draws
        match draws.randrange(7):
            case 0:
                return []
            case 1:
                return [*right, *right]
            case 2:
                return right[:-1]
            case 3:
                return [torch.zeros(1)] * 200
            case 4:
                return [self._form(array) for array in right]
        return [self._numbers(array) for array in right]

    def _form(self, right: Tensor) -> Tensor:
        """Of another dtype, or another shape."""
        draws = self.draws
        match draws.randrange(5):
            case 0:
                return right.to(draws.choice(DTYPES))
            case 1:
                return right.reshape(1, *right.shape)
            case 2:
                return right.flatten()[:-1]
            case 3:
                return torch.cat([right.flatten(), right.flatten()])
        return torch.empty(draws.choice([(0,), (0, 1 << 30), (), (1,) * 8]), dtype=right.dtype)

    def _numbers(self, right: Tensor) -> Tensor:
        """Of the same form."""
        draws, found = self.draws, right.clone()
        value = draws.choice(REAL if right.is_floating_point() else WHOLE[:6])
        value = torch.tensor(value, dtype=torch.float64).to(
            right.dtype
        )  # infinite where it is too large
        match draws.randrange(4):
            case 0:
                return value.expand(right.shape).clone()
            case 1 if found.numel():
                found.view(-1)[draws.randrange(found.numel())] = value
                return found
            case 2:
                return found * draws.choice([-1, 0, 1 << 20])
        return found + value if right.is_floating_point() else found


class Teller:
    """Sends a member's letters, and notes what becomes of them."""

    def __init__(
        self,
        name: str,
        answer: Callable[[str, Letter], Awaitable[Letter | Sealed]],
        where: Callable[[], str],
        tally: Counter[tuple[str, str]],
    ) -> None:
        """`where()` names the state that the other side is in; `tally` counts (state, kind)."""
        self._where, self.tally, self._right = where, tally, answer
        self.link = MemoryLink(name, self._answer, Partials())
        self.last: deque[str] = deque(maxlen=40)  # what was said, for those who look for a fault
        self.faults: list[str] = []

    async def _answer(self, who: str, letter: Letter) -> Letter | Sealed:
        """The other side: it answers or refuses, in a letter, and does nothing else."""
        try:
            reply = await self._right(who, letter)
            return reply if isinstance(reply, Sealed) else reply.sealed
        except (Refused, BadLetter) as no:
            self.last.append(f"refused: {str(no)[:100]}")
            raise
        except Cut:
            raise
        except Exception as error:
            self._fault(letter, error)
            raise Refused("a fault") from error

    def _fault(self, letter: Letter, error: Exception) -> None:
        fields = {name: str(value)[:60] for name, value in letter.fields.items()}
        self.faults.append(f"{letter.kind} {fields} in {self._where()}: {error!r:.400}")

    def note(self, letter: Letter) -> None:
        """Count what is about to be said."""
        where = self._where()
        self.tally[where, letter.kind] += 1
        forms = [(list(array.shape), str(array.dtype)) for array in letter.arrays[:3]]
        self.last.append(f"{where}: {letter.kind} {str(letter.fields)[:300]} {forms}")

    async def say(self, letter: Letter) -> Letter | None:
        """Say it; without an answer where it is refused, or a question that is held."""
        self.note(letter)
        held = letter.kind in ("next", "vector") or self._where() == NOT_BEGUN
        asking = asyncio.create_task(self.link.ask(letter))
        try:
            done, _ = await asyncio.wait([asking], timeout=_SOON if held else _ANSWERED)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if not done:
            if not held:
                self._fault(letter, TimeoutError("no answer"))
            return None
        with suppress(Refused, BadLetter, Cut):
            return asking.result()
        return None


def held_by(*roots: Any) -> int:
    """How much hangs on some objects: entries of containers, characters, bytes, numbers."""
    seen, todo, total = set[int](), list(roots), 0
    while todo:
        each = todo.pop()
        if id(each) in seen or callable(each) or isinstance(each, asyncio.AbstractEventLoop):
            continue
        seen.add(id(each))
        if isinstance(each, str | bytes | bytearray):
            total += len(each)
        elif isinstance(each, Tensor):
            total += each.numel()
        elif isinstance(each, dict):
            total += len(each)
            todo += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset | deque):
            total += len(each)
            todo += each
        elif type(each).__module__.startswith(("archipel", "types")):
            todo += [vars(each)] if hasattr(each, "__dict__") else []
    return total
