# SPDX-License-Identifier: Apache-2.0
"""Flower 1.42's SecAgg+: what one client and the server compute in a round, by its own functions.

Answers each line, "party" or "server", with the processor seconds of it. A client runs the four
stages of `secaggplus_mod`; the server runs the two stages of `SecAggPlusWorkflow` that touch
vectors, with a grid that hands over answers which were made before. Its clients know nothing of
identities and sign nothing, so degree and threshold are those for a server that does not lie.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.common import ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation import secaggplus_workflow as server
from flwr.supercore.task_identity import TaskIdentity

EXAMPLES = 100
client = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")


class Round:
    """Clients of one round, and what the server has of them."""

    def __init__(self, parties: int, lost: int, parameters: int, degree: int, threshold: int):
        self.ids = list(range(1, parties + 1))
        self.lost, self.shares, self.threshold = lost, degree + 1, threshold
        half = degree // 2
        self.near = {
            i: {(i - 1 + step) % parties + 1 for step in range(-half, half + 1)} for i in self.ids
        }
        self.x = ndarrays_to_parameters([np.zeros(parameters, np.float32)])
        self.states = {i: client.SecAggPlusState() for i in self.ids}
        self.keys = {i: self.setup(self.states[i], i) for i in self.ids}
        self.sent = {i: self.share(self.states[i], i) for i in self.ids}
        self.vector = ndarray_to_bytes(np.zeros(parameters, np.int64))

    def setup(self, state: Any, i: int) -> list[bytes]:
        state.nid = i
        said = client._setup(
            state,
            {
                Key.SAMPLE_NUMBER: len(self.ids), Key.SHARE_NUMBER: self.shares,
                Key.THRESHOLD: self.threshold, Key.CLIPPING_RANGE: 8.0, Key.TARGET_RANGE: 1 << 22,
                Key.MOD_RANGE: 1 << 32, Key.MAX_WEIGHT: 1000.0,
            },
        )  # fmt: skip
        return [said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2]]

    def share(self, state: Any, i: int) -> dict[int, bytes]:
        said = client._share_keys(state, {str(j): self.keys[j] for j in self.near[i]})
        return dict(zip(said[Key.DESTINATION_LIST], said[Key.CIPHERTEXT_LIST], strict=True))

    def collect(self, state: Any, i: int, x: Any) -> Any:
        came = {j: self.sent[j][i] for j in self.near[i] if j != i}
        told = {Key.CIPHERTEXT_LIST: [*came.values()], Key.SOURCE_LIST: [*came]}
        return client._collect_masked_vectors(state, told, EXAMPLES, x)

    def unmask(self, state: Any, i: int) -> Any:
        dead = {j for j in self.near[i] if j > len(self.ids) - self.lost}
        told = {Key.ACTIVE_NODE_ID_LIST: [*(self.near[i] - dead)], Key.DEAD_NODE_ID_LIST: [*dead]}
        return client._unmask(state, told)

    def party(self) -> float:
        """Processor seconds of a client."""
        began, state = time.process_time(), client.SecAggPlusState()
        before = self.keys[1]
        self.keys[1] = self.setup(state, 1)
        self.share(state, 1)
        for j, content in [(j, self.sent[j][1]) for j in self.near[1] if j != 1]:
            state.ss2_dict[j] = self.states[1].ss2_dict[j]  # as if they had sealed it for this key
            assert content
        self.collect(state, 1, self.x)
        self.unmask(state, 1)
        spent = time.process_time() - began
        self.keys[1] = before
        return spent

    def server(self) -> float:
        """Processor seconds of the server: add up, put keys together, unmask."""
        stay = self.ids[: len(self.ids) - self.lost]
        for i in stay:  # their shares, with a vector of one number
            self.collect(self.states[i], i, ndarrays_to_parameters([np.zeros(1, np.float32)]))
        one = ndarray_to_bytes(np.ones(1, np.int64))
        masked = [_said(i, {Key.MASKED_PARAMETERS: [one, self.vector]}) for i in stay]
        told = [_said(i, self.unmask(self.states[i], i)) for i in stay]
        state = server.WorkflowState(
            nid_to_proxies=dict.fromkeys(self.ids),
            nid_to_fitins={i: RecordDict() for i in self.ids},
            sampled_node_ids=set(self.ids), active_node_ids=set(self.ids),
            num_shares=self.shares, threshold=self.threshold, clipping_range=8.0,
            quantization_range=1 << 22, mod_range=1 << 32, max_weight=1000.0,
            nid_to_neighbours={i: set(near) for i, near in self.near.items()},
            nid_to_publickeys=self.keys,
            forward_srcs={i: [] for i in self.ids}, forward_ciphertexts={i: [] for i in self.ids},
        )  # fmt: skip
        config = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
        context = SimpleNamespace(
            state=RecordDict({MAIN_CONFIGS_RECORD: config}),
            strategy=SimpleNamespace(aggregate_fit=lambda *_: (None, {})),
        )
        workflow = server.SecAggPlusWorkflow(self.shares, self.threshold)
        answers = [masked, told]
        grid = SimpleNamespace(send_and_receive=lambda *_, **__: answers.pop(0))
        began = time.process_time()
        right = workflow.collect_masked_vectors_stage(grid, context, state)
        right = right and workflow.unmask_stage(grid, context, state)
        assert right, "the round was halted"
        return time.process_time() - began


def _said(i: int, configs: dict[str, Any]) -> SimpleNamespace:
    """A client's answer, as a workflow looks at it."""
    return SimpleNamespace(
        metadata=SimpleNamespace(src_node_id=i),
        has_error=lambda: False,
        content=SimpleNamespace(config_records={RECORD_KEY_CONFIGS: configs}),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("parties", "lost", "parameters", "degree", "threshold"):
        parser.add_argument(f"--{name}", type=int, required=True)
    logging.disable(logging.CRITICAL)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    server.compat.recorddict_to_fitres = lambda *_: SimpleNamespace()
    answers, sys.stdout = sys.stdout, sys.stderr
    made = Round(**vars(parser.parse_args()))
    bytes_up = len(made.vector)
    print(json.dumps({"bytes": bytes_up}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": getattr(made, line.strip())()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
