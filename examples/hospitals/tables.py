# SPDX-License-Identifier: Apache-2.0
"""Write the four hospitals' tables of the study beside this file, from the bundled data.

python examples/hospitals/tables.py
python examples/hospitals/tables.py practice    # there, with a copy of the study
"""

import csv
import gzip
import io
import shutil
import sys
import tomllib
from pathlib import Path

from archipel.data.heart_disease import HOSPITALS
from archipel.data.sources import bundled

here = Path(__file__).parent
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here

study = tomllib.loads((here / "study.toml").read_text())
columns = ["patient", *study["data"]["schema"]]
with bundled("heart_disease.csv.gz") as file, gzip.open(file) as plain:
    rows = list(csv.DictReader(io.TextIOWrapper(plain, "utf-8")))
(folder / "tables").mkdir(parents=True, exist_ok=True)
for hospital in HOSPITALS:
    with (folder / "tables" / f"{hospital}.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        own = [row for row in rows if row["centre"] == hospital]
        for number, row in enumerate(own, 1):
            table.writerow({**row, "patient": number, "disease": int(row["num"] > "0")})
if folder != here:
    shutil.copy(here / "study.toml", folder)
print(f"{folder} has study.toml and the tables of {', '.join(HOSPITALS)}.")
