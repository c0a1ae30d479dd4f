"""The registry of models."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "model_revision",
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("revision", sa.String(64), primary_key=True),
        sa.Column("weights", sa.String(4096), nullable=False),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("architecture", sa.String(128), nullable=False),
        sa.Column("precision", sa.String(64), nullable=False),
        sa.Column("tensor_parallel", sa.Integer, nullable=False),
        sa.Column("pipeline_parallel", sa.Integer, nullable=False),
        sa.Column("data_parallel", sa.Integer, nullable=False),
        sa.Column("expert_parallel", sa.Integer, nullable=False),
        sa.Column("tokenizer", sa.String(4096), nullable=False),
        sa.Column("context_tokens", sa.Integer, nullable=False),
        sa.Column("adapters", sa.Text, nullable=False),
        sa.Column("launch", sa.String(256), nullable=False),
        sa.Column("registered_by", sa.String(128), nullable=False),
        sa.Column("registered_unix", sa.Float, nullable=False),
        sa.Column("retired_unix", sa.Float, nullable=True),
        sa.Column("profile", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Back. The registry is lost: its revisions and their measured profiles have to be registered again."""
    op.drop_table("model_revision")
