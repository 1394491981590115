# SPDX-License-Identifier: Apache-2.0
"""pfl-research 0.6: SimulatedBackend and FederatedAveraging in one process."""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from networks import build, loss, probe_loss, tensors
from pace import Pace, arguments
from workloads import cohort, load


def main() -> None:
    options = arguments()
    pace = Pace(options)
    workload = pace.workload
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x, y = tensors(workload)
    offsets = load(workload).offsets
    module = build(workload)

    def module_loss(x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return loss(module(x), y)

    def module_metrics(x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> dict:
        return {"loss": Weighted(0.0, 1)}

    module.loss, module.metrics = module_loss, module_metrics  # the two methods pfl asks for

    rounds = pace.rounds(lambda: probe_loss(workload, module))
    sampled = iter(cohort(workload, next(rounds)))

    def sample() -> int:
        return int(next(sampled))

    def party(k: int) -> Dataset:
        order = torch.randperm(int(offsets[k + 1] - offsets[k])) + int(offsets[k])
        return Dataset(
            [x[order], y[order]], train_kwargs={"is_eval": False}, eval_kwargs={"is_eval": True}
        )

    class BetweenRounds(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            nonlocal sampled
            t = next(rounds, None)
            if t is not None:
                sampled = iter(cohort(workload, t))
            return t is None, Metrics()

    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset(party, sample),
            val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_num_steps=None,
            local_learning_rate=workload.lr,
            local_batch_size=workload.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[BetweenRounds()],
    )


if __name__ == "__main__":
    main()
