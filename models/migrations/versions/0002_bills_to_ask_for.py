"""Bills to ask for"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempt", sa.Column("bill_at", postgresql.TIMESTAMP(timezone=True), nullable=True))
    op.create_index("attempt_bill", "attempt", ["bill_at"], unique=False, postgresql_where=sa.text("bill_at is not null"))
