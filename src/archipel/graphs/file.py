# SPDX-License-Identifier: Apache-2.0
"""A topology from a file of the user's: a table of edges, two parties each and perhaps a weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archipel.data import dialect
from archipel.errors import ArchipelError, unknown
from archipel.graphs.fixed import fixed
from archipel.graphs.graph import Topology
from archipel.graphs.weights import joined, parts

_FORM = "write a header and then an edge in each line, PARTY,PARTY or PARTY,PARTY,WEIGHT"
_MOST = 1 << 30  # bytes


class Edge(NamedTuple):
    """A line of the file."""

    row: int
    ends: tuple[str, str]
    weight: float


def read(path: Path) -> list[Edge]:
    """Return the edges as they are written; whose they are is not known yet."""
    name = path.name
    try:
        if path.stat().st_size > _MOST:
            raise ArchipelError(f"'{name}': has more than {_MOST >> 20} MiB; {_FORM}.")
        raw = path.read_bytes()
    except OSError as error:
        raise ArchipelError(f"'{path}': cannot be read ({error.strerror}); {_FORM}.") from None
    try:
        text, _ = dialect.decoded(name, raw, None)
        sep = dialect.separator(name, text, None) if text.strip() else ","
        header, _ = dialect.check_widths(name, text, sep)
        mark = "."
        if len(header) == 3:
            mark = dialect.decimal(name, text, sep, None, (), header[2:])
    except ArchipelError as error:  # whose remedies are those of [data]
        raise ArchipelError(f"{str(error).rpartition('; ')[0]}; {_FORM}.") from None
    if len(header) not in (2, 3):
        raise ArchipelError(f"'{name}': has {len(header)} columns; {_FORM}.")
    rows = dialect.records(name, text, sep)
    next(rows)
    edges = [_edge(name, row, [cell.strip() for cell in cells], mark) for row, cells in rows]
    parties = {party for edge in edges for party in edge.ends}
    for cell in header[:2]:
        if cell.strip() in parties:  # which would be left out without a word
            raise ArchipelError(
                f"'{name}': its first row has the party '{cell.strip()}', where the names of the "
                f"columns belong; {_FORM}."
            )
    return edges


def _edge(name: str, row: int, cells: Sequence[str], mark: str) -> Edge:
    weight = 1.0
    if len(cells) == 3:
        try:
            weight = float(cells[2].replace(mark, "."))
        except ValueError:
            weight = np.nan
        if not 0 < weight < np.inf:
            raise ArchipelError(
                f"'{name}': row {row} has the weight '{cells[2]}'; give a number above 0, or leave "
                "the edge out."
            )
    return Edge(row, (cells[0], cells[1]), weight)


def written(name: str, edges: Sequence[Edge]) -> str:
    """Return the edges as a study writes them.

    >>> written("graph.csv", [Edge(1, ("Ulm", "Bonn"), 1.0), Edge(2, ("Bonn", "Cologne"), 0.5)])
    'edges:Ulm-Bonn,Bonn-Cologne*0.5'
    """
    for edge in edges:
        for party in edge.ends:
            if not party or {*party} & {*",*"}:
                raise ArchipelError(
                    f"'{name}': row {edge.row} has the party '{party}', which is no site's name; "
                    "give names of sites, or numbers from 0."
                )
    weights = ["" if edge.weight == 1 else f"*{edge.weight!r}" for edge in edges]
    ends = ["-".join(edge.ends) for edge in edges]
    return "edges:" + ",".join(f"{pair}{by}" for pair, by in zip(ends, weights, strict=True))


def numbered(name: str, edges: Sequence[Edge], parties: Sequence[str]) -> list[Edge]:
    """Return the edges with the numbers of these parties for their names."""
    ends = _ends(name, edges, parties)
    return [edge._replace(ends=(str(i), str(j))) for edge, (i, j) in zip(edges, ends, strict=True)]


def _ends(name: str, edges: Sequence[Edge], parties: Sequence[str]) -> list[tuple[int, int]]:
    """The numbers of the parties that each edge joins."""
    places = {str(k): k for k in range(len(parties))}
    places |= {party: k for k, party in enumerate(parties)}
    for edge in edges:
        for party in edge.ends:
            if party not in places:
                why = unknown("party", party, parties[:100])
                raise ArchipelError(f"'{name}': row {edge.row} has an {why}")
    return [(places[one], places[other]) for one, other in (edge.ends for edge in edges)]


def of_edges(name: str, edges: Sequence[Edge], parties: Sequence[str]) -> Topology:
    """Return the topology of edges between parties of these names; numbers count from 0."""
    n = len(parties)
    found: dict[tuple[int, int], Edge] = {}
    for edge, ends in zip(edges, _ends(name, edges, parties), strict=True):
        i, j = sorted(ends)
        if i == j:
            raise ArchipelError(
                f"'{name}': row {edge.row} joins '{edge.ends[0]}' to itself; leave it out."
            )
        before = found.setdefault((i, j), edge)
        if before.weight != edge.weight:
            raise ArchipelError(
                f"'{name}': rows {before.row} and {edge.row} give the edge of '{edge.ends[0]}' and "
                f"'{edge.ends[1]}' the weights {before.weight:g} and {edge.weight:g}; leave one "
                "out."
            )
    pairs = np.array(sorted(found), np.int64).reshape(-1, 2)
    weight = np.array([found[i, j].weight for i, j in sorted(found)])
    A = joined(n, pairs[:, 0], pairs[:, 1], weight)
    part = parts(A)
    if part.any():
        apart = int(part.argmax())
        raise ArchipelError(
            f"'{name}': no way leads from party '{parties[0]}' to party '{parties[apart]}'; join "
            "them by an edge, or by several."
        )
    return fixed(name, A)
