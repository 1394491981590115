# SPDX-License-Identifier: Apache-2.0
"""The data and the model that a study names: bundled, in tables, in a file, or in a package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from archipel import data as datasets
from archipel import models
from archipel.data import frames, tables
from archipel.data.account import Account, account, described
from archipel.data.federation import Federation
from archipel.data.generated import Generator, from_generator
from archipel.data.shards import is_federation
from archipel.data.spread import from_sheet
from archipel.errors import ArchipelError
from archipel.models.model import Model
from archipel.runs.parts import build_model
from archipel.study import fields, plugins
from archipel.study.checks import said_of, schema_of, share_of, written_of
from archipel.study.sections import Data, Network


def federation_of(data: Data, base: Path, seed: int, options: Mapping[str, Any]) -> Federation:
    """Load what [data] names; `options` are those of the dataset."""
    dealt, written = False, is_written(data, base)
    takes = {} if data.name is None else fields.hints(plugins.find("data", data.name, base))
    own: dict[str, Any] = {"new": data.new} if isinstance(data.new, str) else {}
    if "standardise" in takes and data.standardise is not None:
        own["standardise"] = data.standardise
    if data.schema is not None:
        dealt = data.file is not None and data.by is None
        fed = _by_schema(data, base, seed, dealt)
    elif data.file is not None:
        dealt = data.by is None
        fed = from_sheet(
            Federation,
            sheet_of(data, base),
            said_of(data),
            partition=data.partition if dealt else None,
            parties=data.parties or 10,
            about=datasets.About(tables.stem(Path(data.file))),
            dtype=torch.float64,
            seed=seed,
            standardise=False,  # until it is known who trains
        )
    elif written:
        fed = Federation.open(base / str(data.folder))
    elif data.name is None:
        fed = _of_folder(data, base, seed)
    elif data.name in datasets.DATASETS:
        dealt = True
        fed = datasets.load(
            data.name,
            partition=data.partition,
            parties=data.parties,
            seed=seed,
            folder=None if data.folder is None else base / data.folder,
            test_fraction=share_of(data),
            **own,
            **options,
        )
    else:
        make = plugins.find("data", data.name, base)
        dealt = "partition" in takes
        offered = {
            "seed": seed,
            "partition": data.partition,
            "parties": data.parties,
            "test": data.test,
            "folder": None if data.folder is None else str(base / data.folder),
            **written_of(data)._asdict(),
        }
        taken = {k: v for k, v in (offered | own).items() if k in takes and v is not None}
        found = fields.build("data", make, taken | dict(options))
        if not isinstance(found, Federation | Generator):
            raise ArchipelError(
                f"data.name = '{data.name}': returns {type(found).__name__}, not a Federation, and "
                "nothing that makes one (it has no sizes and generate)."
            )
        fed = found if isinstance(found, Federation) else from_generator(found)
    if data.partition is not None and not dealt:
        fed = fed.repartition(data.partition, data.parties or fed.training, seed)
    if data.new and not isinstance(data.new, str):
        fed = fed.with_new(data.new, seed)
    fed = fed.with_virtual(data.virtual, seed) if data.virtual else fed  # pixels as they are
    standardise = data.standardise and "standardise" not in takes
    if data.standardise is None:
        standardise = data.name is None and not written and fed.x.is_floating_point()  # tables
    if standardise:
        marks = schema_of(data).marks if data.schema is not None else fed.marks
        fed = fed.standardised(marks)
    fed = fed.cross_fitted(data.folds, seed) if data.folds else fed
    return fed.filled().cast() if data.name is None and not written else fed


def is_written(data: Data, base: Path) -> bool:
    """Whether [data] names a folder of shards."""
    return data.name is None and data.folder is not None and is_federation(base / data.folder)


def sheet_of(data: Data, base: Path) -> frames.Sheet:
    """Read the table, or the tables, that [data] names."""
    said, written = said_of(data), written_of(data)
    if data.file is not None:
        return frames.read_table(base / data.file, written, said)
    return frames.read_tables(frames.party_files(base / str(data.folder)), written, said)


def account_of(data: Data, base: Path) -> Account | None:
    """Say what becomes of every column of the tables that [data] names; None without tables."""
    if data.name is not None or is_written(data, base):
        return None
    if data.folder and frames.party_files(base / data.folder)[0].suffix == ".npz":
        return None
    scaled = data.standardise is not False
    if data.schema is not None:
        path = base / (data.file or str(data.folder))
        files = [path] if data.file else frames.party_files(path)
        return described(files, schema_of(data), scaled, data.by if data.file else None)
    said = said_of(data) if data.file else said_of(data)._replace(by=frames.PARTY)
    return account(sheet_of(data, base), said, scaled)


def _of_folder(data: Data, base: Path, seed: int) -> Federation:
    """A table per party, or arrays."""
    folder, said = base / str(data.folder), said_of(data)
    about = datasets.About(folder.name)
    if frames.party_files(folder)[0].suffix != ".npz":
        sheet, by = sheet_of(data, base), said._replace(by=frames.PARTY)
        return from_sheet(
            Federation, sheet, by, about=about, dtype=torch.float64, seed=seed, standardise=False
        )
    return Federation.from_folder(
        folder, target=said.target, test=said.test, task=said.task, about=about, seed=seed,
        standardise=False,
    )  # fmt: skip


def _by_schema(data: Data, base: Path, seed: int, dealt: bool) -> Federation:
    """Read tables as each party reads its own."""
    path = base / (data.file or str(data.folder))
    return schema_of(data).federation(
        [path] if data.file else frames.party_files(path),
        by=data.by if data.file else None,
        partition=data.partition if dealt else None,
        parties=data.parties or 10,
        test=share_of(data),
        about=datasets.About(tables.stem(path) if data.file else path.name),
        seed=seed,
    )


def model_of(
    network: Network, data: Federation, base: Path, seed: int, options: Mapping[str, Any]
) -> Model:
    """Build what [model] names; `options` are those of the model."""
    name: str | torch.nn.Module | Model | None = network.name
    if isinstance(name, str) and name not in models.MODELS:
        net = made(name, network.given, data.shape, data.classes or 1, base, seed)
        name, options = net, {}
    rest = network.statistics, network.class_weights
    return build_model(name, data, network.loss, seed, options, *rest)


def made(
    name: str,
    options: Mapping[str, Any],
    shape: tuple[int, ...],
    outputs: int,
    base: Path,
    seed: int = 0,
) -> torch.nn.Module | Model:
    """Build a network of a package or of a Python file, for points of this shape."""
    make = plugins.find("model", name, base)
    known = fields.hints(make)
    given = {"shape": list(shape), "outputs": outputs, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = fields.build("model", make, {k: v for k, v in given.items() if k in known})
    if not isinstance(net, torch.nn.Module | Model):
        raise ArchipelError(
            f"model.name = '{name}': returns {type(net).__name__}, not a torch.nn.Module."
        )
    return net
