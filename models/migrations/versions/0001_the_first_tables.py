"""The first tables"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


# One line per sample, for a person in psql; docs/data-model.md explains the columns.
SAMPLE_VIEW = """
create view samples as
select d.name as dataset, s.key, s.primary_id, s.turn,
  (array['short', 'long'])[s.lane + 1] as lane,
  (array['queued', 'running', 'done', 'failed'])[s.state + 1] as state,
  (array['rejected', 'drift', 'ambiguous', 'verified', 'logprobs', 'engine'])[c.grade + 1] as grade,
  c.n_prompt as prompt_tokens, c.n_tokens as tokens,
  (select coalesce(sum(a.cost_nusd), 0) from attempt a where a.sample_id = s.id) / 1e9 as cost_usd,
  c.finish_reason, c.provider, c.model, s.reason, s.fence as attempts, c.trainable, c.flags, s.changed_at, s.id
from sample s join dataset d on d.id = s.dataset_id left join completion c on c.sample_id = s.id
"""


def upgrade() -> None:
    op.create_table(
        "calibration",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("convention", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("calibration_pkey")),
    )
    op.create_index(
        "calibration_key", "calibration", ["profile", "model", "provider", "finish_reason", "id"], unique=False
    )
    op.create_table(
        "dataset",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("closed_reason", sa.Text(), nullable=True),
        sa.Column("closed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("token_budget", sa.BigInteger(), nullable=True),
        sa.Column("money_budget_nusd", sa.BigInteger(), nullable=True),
        sa.Column("strict", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("short_max_tokens", sa.Integer(), nullable=False),
        sa.Column("long_max_tokens", sa.Integer(), nullable=False),
        sa.Column("short_expected", sa.Integer(), nullable=False),
        sa.Column("long_expected", sa.Integer(), nullable=False),
        sa.Column("nusd_per_token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("stored_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("useful_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("billed_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("margin_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("spent_nusd", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reserved_nusd", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("margin_nusd", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("samples", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("running", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("forecast_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("dataset_pkey")),
        postgresql_with={
            "fillfactor": "20",
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "200",
        },
    )
    op.create_index("dataset_name_key", "dataset", [sa.literal_column("lower(name)")], unique=True)
    op.create_table(
        "requeue",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column(
            "at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("before", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("undone_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("requeue_pkey")),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("lane", sa.SmallInteger(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column(
            "started_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "heartbeat_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("stopped_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("died_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("in_flight", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("worker_pkey")),
    )
    op.create_index(
        "worker_alive",
        "worker",
        ["id"],
        unique=False,
        postgresql_where=sa.text("stopped_at is null and died_at is null"),
    )
    op.create_table(
        "sample",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("primary_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lane", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("fence", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("burnt", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("possibly_paid", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("crashes", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=True),
        sa.Column("ignore", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("worker_id", sa.Integer(), nullable=True),
        sa.Column("not_before", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("hinted_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "changed_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("prompt", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["dataset.id"], name=op.f("sample_dataset_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("sample_pkey")),
        sa.UniqueConstraint("dataset_id", "key", name=op.f("sample_dataset_id_key_key")),
        postgresql_with={"fillfactor": "85"},
    )
    op.create_index(
        "sample_due", "sample", ["dataset_id", "lane", sa.text("hinted_at nulls first"), "id"], unique=False,
        postgresql_where=sa.text("state = 0"),
    )
    op.create_index(
        "sample_failed", "sample", ["dataset_id", "id"], unique=False, postgresql_where=sa.text("state = 3")
    )
    op.create_index("sample_running", "sample", ["worker_id"], unique=False, postgresql_where=sa.text("state = 1"))
    op.create_table(
        "attempt",
        sa.Column("sample_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Integer(), nullable=False),
        sa.Column("lane", sa.SmallInteger(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("reserved_tokens", sa.Integer(), nullable=False),
        sa.Column("reserved_nusd", sa.BigInteger(), nullable=False),
        sa.Column(
            "started_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("ended_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("action", sa.Text(), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("basis", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("quantization", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("generation_id", sa.Text(), nullable=True),
        sa.Column("status", sa.SmallInteger(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("cost_nusd", sa.BigInteger(), nullable=True),
        sa.Column("latency_ms", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["sample_id"], ["sample.id"], name=op.f("attempt_sample_id_fkey")),
        sa.PrimaryKeyConstraint("sample_id", "fence", name=op.f("attempt_pkey")),
        postgresql_with={"fillfactor": "85"},
    )
    op.create_index("attempt_ended", "attempt", ["dataset_id", "ended_at"], unique=False)
    op.create_index(
        "attempt_open", "attempt", ["dataset_id"], unique=False, postgresql_where=sa.text("ended_at is null")
    )
    op.create_table(
        "completion",
        sa.Column("sample_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("grade", sa.SmallInteger(), nullable=False),
        sa.Column("candidates", sa.SmallInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("rule", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("delta", sa.Integer(), nullable=True),
        sa.Column("prompt_delta", sa.Integer(), nullable=True),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("trainable", sa.Boolean(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("flags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("provider", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("quantization", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("sampling", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("billed_prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("billed_tokens", sa.Integer(), nullable=True),
        sa.Column("cost_nusd", sa.BigInteger(), nullable=False),
        sa.Column("n_prompt", sa.Integer(), nullable=False),
        sa.Column("n_tokens", sa.Integer(), nullable=False),
        sa.Column("spans", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["sample_id"], ["sample.id"], name=op.f("completion_sample_id_fkey")),
        sa.PrimaryKeyConstraint("sample_id", name=op.f("completion_pkey")),
    )
    op.create_index("completion_dataset", "completion", ["dataset_id", "sample_id"], unique=False, postgresql_include=["grade"])
    op.create_table(
        "partial",
        sa.Column("sample_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("n_tokens", sa.Integer(), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["sample_id"], ["sample.id"], name=op.f("partial_sample_id_fkey")),
        sa.PrimaryKeyConstraint("sample_id", name=op.f("partial_pkey")),
    )
    # These columns are compressed already; letting PostgreSQL try again costs CPU and gains nothing.
    op.execute("alter table sample alter prompt set storage external")
    for column in ("prompt_ids", "ids", "raw"):
        op.execute(f"alter table completion alter {column} set storage external")
    op.execute("alter table partial alter ids set storage external, alter raw set storage external")
    op.execute(SAMPLE_VIEW)
