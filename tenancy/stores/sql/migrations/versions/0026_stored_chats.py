"""Stored chat completions are listed by tenant and time."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

CHATS = sa.func.substr(sa.literal_column("id"), sa.literal_column("1"), sa.literal_column("9")) == sa.literal_column("'chatcmpl-'")


def upgrade() -> None:
    """Forward."""
    op.create_index("stored_chats", "stored_response", ["tenant", "created_unix"], sqlite_where=CHATS, postgresql_where=CHATS)


def downgrade() -> None:
    """Back. Versions before know no stored chat completions: they are removed."""
    op.drop_index("stored_chats", "stored_response")
    op.execute("DELETE FROM stored_response WHERE substr(id, 1, 9) = 'chatcmpl-'")
