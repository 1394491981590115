# SPDX-License-Identifier: Apache-2.0
"""The workloads' networks in PyTorch, and their initial weights for other frameworks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from workloads import CACHE, CHARACTERS, Workload, load, probe


class CNN(nn.Module):
    """Two 5x5 convolutions and two linear layers, as in the FedAvg paper."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.linear1 = nn.Linear(3136, 512)
        self.linear2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 1, 28, 28)
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2)
        return self.linear2(relu(self.linear1(x.flatten(1))))


class CharLSTM(nn.Module):
    """Next-character prediction at every position: [b, T] -> [b, T, characters]."""

    def __init__(self, characters: int = CHARACTERS, embedding: int = 8, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, 2, batch_first=True)
        self.output = nn.Linear(hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        return self.output(hidden)


def build(workload: Workload, seed: int = 0) -> nn.Module:
    """Return the workload's network, with the same weights for every candidate."""
    torch.manual_seed(seed)
    match workload.name:
        case "W1":
            return nn.Linear(784, workload.classes)
        case "W2":
            return nn.Sequential(
                nn.Linear(784, 200),
                nn.ReLU(),
                nn.Linear(200, 200),
                nn.ReLU(),
                nn.Linear(200, workload.classes),
            )
        case "W3":
            return CNN(workload.classes)
        case _:
            return CharLSTM()


def loss(output: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over examples, and over positions in text."""
    return cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1))


def tensors(workload: Workload) -> tuple[Tensor, Tensor]:
    """Return all parties' x and y as tensors on the memory map."""
    arrays = load(workload)
    return torch.from_numpy(np.asarray(arrays.x)), torch.from_numpy(np.asarray(arrays.y))


def probe_loss(workload: Workload, module: nn.Module) -> float:
    """Return the loss on the first examples: it shows that the candidates do the same work."""
    x, y = (torch.from_numpy(values) for values in probe(workload))
    with torch.no_grad():
        return float(loss(module(x), y))


def save_weights(workload: Workload) -> Path:
    """Write the initial weights for candidates without PyTorch."""
    path = CACHE / "data" / f"{workload.name}_weights.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(part, **{k: p.detach().numpy() for k, p in build(workload).named_parameters()})
        part.replace(path)
    return path
