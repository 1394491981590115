# SPDX-License-Identifier: Apache-2.0
"""Populations that are made party by party."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ar
from archipel import rng
from archipel.data import Federation, load
from archipel.data.population import Population
from archipel.data.rows import Ints
from archipel.errors import ArchipelError


@dataclass(frozen=True)
class Own:
    parties: int = 50
    new: int = 0
    classes: int = 2
    task: str = "classification"
    asked: list[int] = field(default_factory=list, repr=False, compare=False)

    def sizes(self, parties: Ints) -> tuple[Ints, Ints]:
        return 2 + parties % 3, parties % 2

    def generate(self, parties: Ints) -> tuple[Any, Any]:
        self.asked.extend(parties.tolist())
        x = [
            rng.generator(7, k, "points").standard_normal((n, 3))
            for k, n in zip(parties.tolist(), sum(self.sizes(parties)).tolist(), strict=True)
        ]
        x = np.concatenate(x).astype(np.float32)
        return x, (x[:, 0] > 0).astype(np.int64)


def test_rounds_make_the_points_of_those_who_are_asked() -> None:
    own = Own(parties=200_000)
    fed = Federation.from_generator(own)
    model = ar.Model(torch.nn.Linear(3, 2), loss="cross_entropy")
    with ar.LocalEngine(ar.FedAvg(lr=0.1), fed, model, plan=ar.Plan("stacked", 8, 1)) as engine:
        own.asked.clear()
        engine.round(0, [5, 77_777, 199_999])

    assert sorted(set(own.asked)) == [5, 77_777, 199_999] and len(own.asked) == 3


def test_it_is_a_federation_like_any_other() -> None:
    fed = Federation.from_generator(Own(new=10))
    plain = fed.here

    assert repr(fed) == repr(plain) and fed.training == 40 and fed.shape == (3,)
    assert not isinstance(plain, Population)
    for k in (0, 7, 49):
        assert all(map(torch.equal, fed.party(k), plain.party(k)))
    picked = fed.select([8, 3])
    assert isinstance(picked, Population) and picked.name(0) == "8"
    assert torch.equal(picked.x, plain.select([8, 3]).x)
    assert torch.equal(fed.pooled().x, plain.pooled().x)
    assert torch.equal(fed.validation().x, plain.validation().x)
    assert "2 classes" in fed.summary()


def test_what_needs_all_points_says_that_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archipel.data.population._memory", lambda: 1000)
    with pytest.raises(ArchipelError, match=r"this takes all .* points at once"):
        Federation.from_generator(Own()).pooled()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parties": 0}, "at least one party trains"),
        ({"new": 50}, "at least one party trains"),
        ({"task": "guessing"}, "unknown task"),
        ({"classes": 1}, "label 1, outside"),
        ({"sizes": lambda self, p: (p, -p)}, "two arrays of whole numbers"),
        ({"sizes": lambda self, p: (p * 1.5, p)}, "two arrays of whole numbers"),
        ({"sizes": lambda self, p: p}, "two arrays of whole numbers"),
        ({"sizes": lambda self, p: (0 * p, 0 * p)}, "no party has a point"),
        ({"generate": lambda self, p: None}, "return \\(x, y\\)"),
        ({"generate": lambda self, p: (np.full((9, 3), np.nan), np.zeros(9, int))}, "points"),
    ],
)
def test_populations_that_cannot_be(changed: dict[str, Any], said: str) -> None:
    kind = type("Changed", (Own,), {k: v for k, v in changed.items() if callable(v)})
    with pytest.raises(ArchipelError, match=said):
        Federation.from_generator(kind(**{k: v for k, v in changed.items() if not callable(v)}))


def test_values_that_are_not_finite_are_refused_with_their_party() -> None:
    class Broken(Own):
        def generate(self, parties: Ints) -> tuple[Any, Any]:
            x, y = super().generate(parties)
            x[np.repeat(parties, sum(self.sizes(parties))) == 9] = np.nan
            return x, y

    fed = Federation.from_generator(Broken())
    with pytest.raises(ArchipelError, match="party '9': x has nan"):
        fed.held(np.array([4, 9]))


def test_a_party_that_depends_on_the_others_is_refused() -> None:
    class Joint(Own):
        def generate(self, parties: Ints) -> tuple[Any, Any]:
            x, y = super().generate(parties)
            return x + len(parties), y

    with pytest.raises(ArchipelError, match="draw by the party's number"):
        Federation.from_generator(Joint())
    with pytest.raises(ArchipelError, match="makes no population"):
        Federation.from_generator(object())  # type: ignore[arg-type]


def test_crowds_are_keyed_by_seed_and_party() -> None:
    small, large = load("crowd", parties=100), load("crowd", parties=10**6)

    assert isinstance(large, Population)
    assert all(map(torch.equal, small.party(42), large.party(42)))
    assert not torch.equal(small.party(42)[0], load("crowd", parties=100, seed=1).party(42)[0])
    with pytest.raises(ArchipelError, match="two points or more"):
        load("crowd", least=1)


def test_a_study_takes_a_population_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "from archipel import rng\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    parties: int = 1000\n"
        "    seed: int = 0\n"
        "    task, classes = 'classification', 2\n\n"
        "    def sizes(self, parties):\n"
        "        return np.full(len(parties), 4), np.full(len(parties), 2)\n\n"
        "    def generate(self, parties):\n"
        "        draws = [rng.generator(self.seed, k, 'x') for k in parties.tolist()]\n"
        "        x = [each.standard_normal((6, 2)) for each in draws]\n"
        "        x = np.concatenate(x).astype(np.float32)\n"
        "        return x, (x[:, 0] > 0).astype(int)\n"
    )
    (tmp_path / "study.toml").write_text(
        "[study]\nrounds = 2\n[data]\nname = 'mine.py:Mine'\nparties = 300\n[round]\nsample = 5\n"
    )
    study = ar.Study.read(tmp_path / "study.toml")
    fed = study.federation()

    assert isinstance(fed, Population) and fed.parties == 300
    assert study.run(out=None, baselines=False, workers=1).done == 2
