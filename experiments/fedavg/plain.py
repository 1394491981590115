# SPDX-License-Identifier: Apache-2.0
"""FedAvg written out in plain PyTorch, to check the rounds that run.py counts.

Only the arrays come from Archipel: the deal, the sampling, local training, the average and the test
are written here, with other random numbers.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import archipel as ar

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--partition", choices=["iid", "shards"], default="iid")
parser.add_argument("--lr", type=float, default=0.2154)
parser.add_argument("--target", type=float, default=0.97)
parser.add_argument("--rounds", type=int, default=800)
parser.add_argument("--seed", type=int, default=123)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)

x, y, x_test, y_test = ar.load("mnist", parties=1).party(0)
x, x_test = x.flatten(1), x_test.flatten(1)
if args.partition == "iid":
    parts = np.split(rng.permutation(60000), 100)
else:
    shards = np.split(np.argsort(y.numpy(), kind="stable"), 200)
    parts = [np.concatenate([shards[i] for i in pair])
             for pair in rng.permutation(200).reshape(100, 2)]  # fmt: skip
print("classes per party:", np.bincount([len(y[part].unique()) for part in parts]))

net = nn.Sequential(
    nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
)
for t in range(1, args.rounds + 1):
    sums = [torch.zeros_like(w) for w in net.parameters()]
    for k in rng.choice(100, 10, replace=False):
        local, order = copy.deepcopy(net), rng.permutation(parts[k])
        for batch in np.split(order, 60):
            loss = cross_entropy(local(x[batch]), y[batch])
            gradients = torch.autograd.grad(loss, list(local.parameters()))
            with torch.no_grad():
                for w, g in zip(local.parameters(), gradients, strict=True):
                    w -= args.lr * g
        for total, w in zip(sums, local.parameters(), strict=True):
            total += w.detach() / 10
    with torch.no_grad():
        for w, total in zip(net.parameters(), sums, strict=True):
            w.copy_(total)
        accuracy = float((net(x_test).argmax(1) == y_test).double().mean())
    if t % 20 == 0:
        print(t, f"{accuracy:.4f}", flush=True)
    if accuracy >= args.target:
        print(f"{args.partition}: {args.target:.0%} in round {t} ({accuracy:.4f})")
        break
