# SPDX-License-Identifier: Apache-2.0
import torch

from archipel.data import load


def test_heart_disease_counts() -> None:
    fed = load("heart_disease")

    assert (fed.n + fed.n_test).tolist() == [303, 261, 46, 130]
    assert fed.x.dtype == torch.float32
