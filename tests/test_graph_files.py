# SPDX-License-Identifier: Apache-2.0
"""Graphs from a file: how it may be written, what is refused, and that studies stand for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archipel.errors import ArchipelError
from archipel.graphs import Described
from archipel.study.file import Study

NAMES = ["Ulm", "Bonn", "Köln"]
WEIGHTS = [[0, 0.5, 0], [0.5, 0, 2], [0, 2, 0]]


@pytest.mark.parametrize(
    "raw",
    [
        b"from,to,weight\nUlm,Bonn,0.5\nBonn,K\xc3\xb6ln,2\n",
        b"\xef\xbb\xbffrom;to;weight\r\nUlm;Bonn;0,5\r\nBonn;K\xc3\xb6ln;2\r\n\r\n",
        "a\tb\tw\nBonn\tUlm\t0.5\nUlm\tBonn\t0.5\nKöln\tBonn\t2".encode("utf-16"),
        b"from, to, weight\n0, 1, 5e-1\n1, 2, 2.0\n",
        b"from,to,weight\nUlm,1,0.5\nBonn,K\xf6ln,2\n",
        b'from,to,weight\n"Ulm","Bonn","0.5"\n"Bonn",2,2\n',
    ],
)
def test_a_file_may_be_written_in_many_ways(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_bytes(raw)

    graph = Described(file=tmp_path / "graph.csv").over(NAMES)

    assert graph.affinity().toarray().tolist() == WEIGHTS
    assert graph.neighbours(1) == [0, 2]
    np.testing.assert_allclose(graph.weights().sum(dim=-1), 1)


def test_without_a_third_column_edges_weigh_one(tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_text("i,j\n0,1\n1,2\n")

    graph = Described(file=tmp_path / "graph.csv", weights="max_degree").over(["7", "8", "9"])

    assert graph.affinity().toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'graph.csv': is empty; write a header and then an edge in each line"),
        ("i,j\n", "has a header and no rows; write a header and then"),
        ("i\n0\n", "one column only where ',', ';', tab or '|' separates cells"),
        ("i,j,w,more\n0,1,1,1\n", "has 4 columns; write a header"),
        ("0,1\n1,2\n0,2\n", "its first row has the party '0', where the names of the columns"),
        ("Ulm,Bonn,3\nBonn,Köln,2\n", "its first row has the party 'Bonn'"),
        ("i,j\n0,1,2\n", "cells in row 2: 3, in the header: 2"),
        ("i,j\nUlm,Born\n", "row 2 has an unknown party 'Born': Known: Bonn"),
        ("i,j\n0,3\n", "row 2 has an unknown party '3'"),
        ("i,j\n0,1\n1,2\n2,2\n", "row 4 joins '2' to itself; leave it out"),
        ("i,j,w\n0,1,1\n1,2,1\n1,0,2\n", "rows 2 and 4 give the edge of '1' and '0' the weights"),
        ("i,j,w\n0,1,-1\n1,2,1\n", "row 2 has the weight '-1'; give a number above 0"),
        ("i,j,w\n0,1,0\n1,2,1\n", "row 2 has the weight '0'; give a number above 0"),
        ("i,j,w\n0,1,nan\n1,2,1\n", "row 2 has the weight 'nan'; give a number above 0"),
        ("i,j,w\n0,1,inf\n1,2,1\n", "row 2 has the weight 'inf'; give a number above 0"),
        ("i,j,w\n0,1,\n1,2,1\n", "row 2 has the weight ''; give a number above 0"),
        ("i,j\n0,1\n", "no way leads from party 'Ulm' to party 'Köln'; join them by an edge"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_text(text)

    with pytest.raises(ArchipelError, match=words) as caught:
        Described(file=tmp_path / "graph.csv").over(NAMES)
    assert str(caught.value).endswith((".", "?"))
    assert "data." not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    for raw in (b"\x00\x01\x02", bytes(range(128, 256)), b"i,j\n0,\xc3\xb6\x81\n"):
        (tmp_path / "graph.csv").write_bytes(raw)
        with pytest.raises(ArchipelError, match=r"write a header and then an edge"):
            Described(file=tmp_path / "graph.csv").over(NAMES)


def test_a_study_stands_for_its_graph(tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_text("i,j\n" + "".join(f"{i},{i + 1}\n" for i in range(9)))
    parts = {"data": {"name": "moons", "parties": 10}, "study": {"rounds": 2}}
    study = Study.of("dsgd", base=tmp_path, topology={"file": "graph.csv"}, **parts)
    before = study.hash

    run = study.run(out=None, baselines=False, workers=1)

    assert run.spent.up == 2 * 9 * 2 * run.task_model.p * 4
    assert study.resolved()["sources"].keys() == {"graph.csv"}
    with (tmp_path / "graph.csv").open("a") as file:
        file.write("9,0\n")
    assert Study.of("dsgd", base=tmp_path, topology={"file": "graph.csv"}, **parts).hash != before


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"file": "none.csv"}, r"topology\.file: .*none\.csv': cannot be read \(No such file"),
        ({"file": "a.csv", "name": "ring"}, r"topology\.name = \"ring\" is a graph already"),
        ({"weights": "max_degree"}, r"topology\.weights: there is no graph; name one"),
        ({"name": "ring", "weights": "max"}, r"topology\.weights"),
        ({"name": "rign"}, r"did you mean 'ring'"),
    ],
)
def test_a_section_that_cannot_be_is_refused(graph: dict[str, str], words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        Study.of("dsgd", data={"name": "moons"}, topology=graph)
