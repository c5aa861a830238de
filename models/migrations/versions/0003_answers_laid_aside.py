"""Answers laid aside"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shelved",
        sa.Column("requeue_id", sa.Integer(), nullable=False),
        sa.Column("sample_id", sa.BigInteger(), nullable=False),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["requeue_id"], ["requeue.id"], name=op.f("shelved_requeue_id_fkey")),
        sa.ForeignKeyConstraint(["sample_id"], ["sample.id"], name=op.f("shelved_sample_id_fkey")),
        sa.PrimaryKeyConstraint("requeue_id", "sample_id", name=op.f("shelved_pkey")),
    )
