"""A step of the wire: bound how much one party can say, and hide the rest in noise.

[wire]
up = ["clip_and_noise.py:1.0:0.5"]     # norm of an upload at most 1, noise of 0.5 times that
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import stack

from archipel.exchange.sender import Sender
from archipel.wire.step import Vectors


@dataclass(frozen=True)
class ClipAndNoise:
    clip: float = 1.0  # S: largest norm of an upload, over all its vectors together
    noise: float = 1.0  # standard deviation of the noise, in units of S

    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def init(self, form: Vectors) -> None:
        return None

    def send(self, me: Sender, upload: Vectors, own: None) -> tuple[Vectors, None]:
        norms = [x.flatten(len(me.lead)).norm(dim=-1) for x in upload]
        factor = (self.clip / stack(norms).norm(dim=0).clamp_min(1e-12)).clamp_max(1.0)
        clipped = [x * factor.view(*factor.shape, *[1] * (x.dim() - factor.dim())) for x in upload]
        return tuple(x + self.noise * self.clip * me.noise(x) for x in clipped), None

    def receive(self, them: Sender, payload: Any, form: Vectors) -> Vectors:
        return payload

    def bound(self, before: float | None) -> float | None:
        return self.clip if self.noise == 0 else None
