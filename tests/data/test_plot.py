# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from archipel.data import Federation, load


@pytest.mark.parametrize("name", ["heart_disease", "tcga_brca", "school"])
def test_every_task_is_drawn(name: str, tmp_path: Path) -> None:
    figure = load(name).plot(tmp_path / "f.png")

    assert (tmp_path / "f.png").stat().st_size > 10_000
    assert figure.get_suptitle() == name


def test_text_empty_and_new_parties_are_drawn(tmp_path: Path) -> None:
    windows = [np.zeros((n, 4), np.int64) for n in (3, 0, 2, 90)]
    fed = Federation.from_arrays(windows, windows, task="text", classes=5, new=1)
    sizes = [np.zeros((n, 1)) for n in (3, 0) + (5,) * 20]
    numbers = Federation.from_arrays(sizes, [s[:, 0] for s in sizes], new=2)

    assert len(fed.plot(tmp_path / "a.png").axes) == 2
    assert len(numbers.plot(tmp_path / "b.svg", max_parties=3).axes) == 2


def test_classes_have_their_names(tmp_path):
    table = pd.DataFrame(
        {"x": [1.5, 2.0] * 6, "by": ["a", "b"] * 6, "y": ["icu", "home", "$5"] * 4}
    )
    fed = Federation.from_frame(table, by="by", target="y")

    axes = fed.plot(tmp_path / "c.png").axes[0]

    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["$5", "home", "icu"]
