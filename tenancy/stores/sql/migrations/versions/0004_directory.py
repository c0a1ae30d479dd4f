"""Organisations, rights, rotation and scopes of keys, limits, prices.

Forward, every tenant belongs to the organisation `default`. Back, what only this schema can say is lost: limits, prices, rights,
organisations. What must not become more than it was is revoked: keys that were disabled, by themselves or with what they belong
to, and keys that are for the admin port only.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KINDS = ("uncached_input", "cached_input", "output", "reasoning")

key = sa.table(
    "api_key",
    *map(sa.column, ("id", "tenant", "project", "second_digest", "created_unix", "revoked_unix", "disabled", "scopes")),
)
tenant = sa.table("tenant", *map(sa.column, ("name", "organisation", "disabled")))
project = sa.table("project", *map(sa.column, ("tenant", "name", "disabled")))
organisation = sa.table(
    "organisation",
    sa.column("name", sa.String),
    sa.column("created_unix", sa.Float),
    sa.column("disabled", sa.Boolean),
)


def account_columns() -> list[sa.Column]:
    """The columns that organisations, tenants and projects have in common."""
    return [
        sa.Column("label", sa.String(200), nullable=False, server_default=""),
        sa.Column("disabled", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("rights", sa.Text, nullable=False, server_default="{}"),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="1"),
    ]


def added_columns() -> dict[str, list[sa.Column]]:
    """New columns by existing table."""
    return {
        "tenant": [sa.Column("organisation", sa.String(63), nullable=False, server_default="default"), *account_columns()],
        "project": [sa.Column("created_unix", sa.Float, nullable=False, server_default="0"), *account_columns()],
        "api_key": [
            sa.Column("old_until_unix", sa.Float),
            sa.Column("disabled", sa.Boolean, nullable=False, server_default=sa.false()),
            sa.Column("scopes", sa.String(64), nullable=False, server_default="inference"),
            sa.Column("roles", sa.String(128), nullable=False, server_default=""),
            sa.Column("rights", sa.Text, nullable=False, server_default="{}"),
            sa.Column("version", sa.BigInteger, nullable=False, server_default="1"),
        ],
    }


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "organisation",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("created_unix", sa.Float, nullable=False),
        *account_columns(),
    )
    op.bulk_insert(organisation, [{"name": "default", "created_unix": 0.0}])
    for table, columns in added_columns().items():
        for column in columns:
            op.add_column(table, column)
    op.execute(sa.update(key).values(second_digest=None))  # nothing wrote any, and without an end it would not be taken
    op.create_table(
        "usage_limit",
        sa.Column("id", sa.String(400), primary_key=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("meter", sa.String(32), nullable=False),
        sa.Column("counted_per", sa.String(16), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("burst", sa.BigInteger),
        sa.Column("soft", sa.BigInteger),
        sa.Column("raised_to", sa.BigInteger),
        sa.Column("raised_until_unix", sa.Float),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "price",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("revision", sa.String(256), nullable=False),
        sa.Column("effective_unix", sa.Float, nullable=False),
        *(sa.Column(f"{what}_{kind}", sa.BigInteger, nullable=False) for what in ("nanousd", "units") for kind in KINDS),
        sa.UniqueConstraint("model", "revision", "effective_unix", name="price_begins_once"),
    )


def downgrade() -> None:
    """Back."""
    closed = sa.select(organisation.c.name).where(organisation.c.disabled)
    shut = sa.select(tenant.c.name).where(sa.or_(tenant.c.disabled, tenant.c.organisation.in_(closed)))
    place = sa.select(project.c.name).where(project.c.tenant == key.c.tenant, project.c.name == key.c.project, project.c.disabled)
    stops = sa.or_(key.c.disabled, key.c.tenant.in_(shut), place.correlate(key).exists(), key.c.scopes.not_like("%inference%"))
    op.execute(sa.update(key).where(stops).values(revoked_unix=sa.func.coalesce(key.c.revoked_unix, key.c.created_unix)))
    op.execute(sa.update(key).values(second_digest=None))  # the schema before has no end for it
    op.drop_table("price")
    op.drop_table("usage_limit")
    for table, columns in added_columns().items():
        for column in reversed(columns):
            op.drop_column(table, column.name)
    op.drop_table("organisation")
