"""A step of the wire: eight bits a number, and what they leave out is sent the next time.

[wire]
up = ["int8.py"]
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, int8, zeros_like

from archipel.exchange.sender import Sender
from archipel.wire.step import Vectors


class Codes(NamedTuple):
    codes: Tensor  # int8 [..., *shape]
    scale: Tensor  # [..., 1]


@dataclass(frozen=True)
class Int8:
    linear: ClassVar[bool] = False  # every upload has a scale of its own
    unbiased: ClassVar[bool] = False

    def init(self, form: Vectors) -> Vectors:
        return tuple(zeros_like(x) for x in form)  # the error so far

    def send(self, me: Sender, upload: Vectors, own: Vectors) -> tuple[tuple[Codes, ...], Vectors]:
        wanted = tuple(x + error for x, error in zip(upload, own, strict=True))
        coded = tuple(self._coded(me, x) for x in wanted)
        arrives = self.receive(me, coded, upload)
        return coded, tuple(x - y for x, y in zip(wanted, arrives, strict=True))

    def receive(self, them: Sender, payload: tuple[Codes, ...], form: Vectors) -> Vectors:
        return tuple(_each(c.scale, c.codes) * c.codes.to(c.scale.dtype) for c in payload)

    def bound(self, before: float | None) -> float | None:
        return None

    def _coded(self, me: Sender, x: Tensor) -> Codes:
        scale = x.flatten(len(me.lead)).abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
        return Codes((x / _each(scale, x)).round().to(int8), scale)


def _each(scale: Tensor, x: Tensor) -> Tensor:
    """A number per party, for tensors of any shape."""
    return scale.view(*scale.shape[:-1], *[1] * (x.dim() - scale.dim() + 1))
