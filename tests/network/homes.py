"""A site's folder without a coordinator: what a site knows and decides by itself."""

from __future__ import annotations

import json
from pathlib import Path

import tomli_w

from archipel.federation.certificates import (
    Authority,
    Identity,
    new_key,
    pem_of,
    write_secret,
)
from archipel.federation.site.site import Site
from archipel.store.files import write

NOWHERE = "127.0.0.1:9"  # where nobody listens

STUDY = {
    "study": {"name": "heart", "purpose": "To test.", "rounds": 10},
    "data": {
        "target": "ill",
        "test": 0.2,
        "schema": {"age": "number", "weight": "number", "sex": ["f", "m"], "ill": [0, 1]},
    },
    "algorithm": {"name": "scaffold", "lr": 0.1, "batch_size": 20},
    "round": {"quorum": 3},
}


def made_site(home: Path, name: str = "ulm") -> Site:
    """A site that has joined a federation whose coordinator is away."""
    home.mkdir(parents=True)
    authority, key = Authority.create("test"), new_key()
    write_secret(home / "site.pem", pem_of(key) + authority.certify(key.public_key(), name))
    write_secret(home / "identity.key", Identity.create().pem)
    write(home / "authority.pem", authority.pem)
    about = {"name": name, "address": NOWHERE, "federation": "test", "listens": ""}
    write(home / "site.json", json.dumps(about).encode())
    return Site(home)


def study_text(**sections: dict) -> bytes:
    """The study above, with keys of its sections changed; None takes one away."""
    tables = {name: dict(table) for name, table in STUDY.items()}
    for section, changes in sections.items():
        table = tables.setdefault(section, {})
        table |= changes
        tables[section] = {key: value for key, value in table.items() if value is not None}
    return tomli_w.dumps(tables).encode()


def table(path: Path, rows: int, seed: int = 0) -> Path:
    """A hospital's table of that many rows."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, rows)
    frame = pd.DataFrame(
        {
            "age": np.round(rng.normal(60 + 5 * ill, 10), 1),
            "weight": np.round(rng.normal(75, 12, rows), 1),
            "sex": np.where(rng.random(rows) < 0.5, "f", "m"),
            "ill": ill,
        }
    )
    frame.to_csv(path, index=False)
    return path
