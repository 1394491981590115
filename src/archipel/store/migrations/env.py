# SPDX-License-Identifier: Apache-2.0
"""Run by alembic in the transaction of `Registry.open` or `Journal.begin`; there is no ini file.

A change of the tables is a new file in `versions/`, whose `down_revision` is the last one's
`revision`. Files there never change: databases were made by them.
"""

from alembic import context

from archipel.store.database import VERSION_TABLE
from archipel.store.journal import METADATA as JOURNAL
from archipel.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=[METADATA, JOURNAL],
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    render_as_batch=True,  # SQLite alters little but by a new table
)
with context.begin_transaction():
    context.run_migrations()
