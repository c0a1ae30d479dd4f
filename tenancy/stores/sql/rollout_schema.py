"""The tables of rollouts and of the sums that workers report about them."""

import sqlalchemy as sa

from tenancy.stores.sql.schema import metadata

rollout = sa.Table(
    "rollout",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.String(63), nullable=False),
    sa.Column("baseline", sa.String(64), nullable=False),
    sa.Column("canary", sa.String(64), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("changed_unix", sa.Float, nullable=False),
    sa.Index("rollout_by_end", "open", "changed_unix", "id"),
    sa.Index("rollout_by_name", "name", "created_unix"),
)
"""`document` has both pools as well; the columns are there so that no pool takes part in two rollouts in force."""

rollout_sums = sa.Table(
    "rollout_sums",
    metadata,
    sa.Column("rollout", sa.String(40), primary_key=True),
    sa.Column("interval_index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("source", sa.String(128), primary_key=True),
    sa.Column("sums", sa.Text, nullable=False),
)
"""No foreign key: a worker may write once more after a rollout is closed. Such rows are removed later (`forget_closed`)."""
