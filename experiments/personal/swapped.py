# SPDX-License-Identifier: Apache-2.0
"""Does PeFLL use a party's embedding? Its models when writers get each other's, or the mean one.

python experiments/personal/swapped.py    # about two minutes; writes swapped.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import archipel as ar
from archipel.algorithms.pefll import PeFLL, Shared
from archipel.core import Each, Uploads
from archipel.runs.parts import build_model

sys.path.insert(0, str(Path(__file__).parents[1]))

from methods import METHODS
from parties import writers
from reporting import table
from run import read, score

FOLDER = Path(__file__).parent
ROUNDS, SAMPLE = 200, 0.1


@dataclass(frozen=True)
class Swapped(PeFLL):
    """The same networks, with embeddings that are somebody else's."""

    by: str = "nobody"  # nobody, another, mean

    def advise(self, shared: Shared, uploads: Uploads) -> Each:
        v = uploads.stack()
        if self.by == "another":
            v = v.registry(1, dims=-2)
        elif self.by == "mean":
            v = shared.scale.mean.expand_as(v)
        return Each(self._models(shared.mean_h, v, shared.scale, shared.theta.shape[-1]))


def main() -> None:
    inside = writers(seed=0).validation()
    fed, model = inside.fed, build_model("mlp", inside.fed, seed=0)
    settings = read(FOLDER / "settings.json")["femnist"]["pefll"]["chosen"]
    trained: Any = METHODS["pefll"].make(settings)
    fields = {name: getattr(trained, name) for name in PeFLL.__dataclass_fields__}
    sampled = round(SAMPLE * fed.training)
    with ar.LocalEngine(trained, fed, model, seed=0) as engine:
        for t in range(ROUNDS):
            random = np.random.default_rng([0, t])
            engine.round(t, random.choice(fed.training, sampled, replace=False))
        state = engine.state()
        plan = engine.plan
    rows = []
    for by, label in (("nobody", "its own"), ("another", "another writer's"), ("mean", "the mean")):
        with ar.LocalEngine(Swapped(**fields, by=by), fed, model, seed=0, plan=plan) as engine:
            engine.restore({name: torch.clone(value) for name, value in state.items()})
            found = score(engine.evaluate(own=True).parties["accuracy"], inside)
        rows.append(
            [label, *(f"{100 * found[group]['accuracy']:.1f}" for group in ("seen", "new"))]
        )
    text = table(["embedding", "seen writers (%)", "held-out writers (%)"], rows)
    about = f"{fed.training} writers train for {ROUNDS} rounds, validation points, seed 0."
    (FOLDER / "swapped.md").write_text(f"{about}\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
