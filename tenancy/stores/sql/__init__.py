"""The directory, registered backends and adapters, the ledger, the audit, stored Responses and the request log in SQLite or Postgres
through SQLAlchemy; Alembic migrates the schema (`migrations/`)."""

from tenancy.stores.sql.adapters import SqlAdapterStore
from tenancy.stores.sql.alerts import SqlAlerts
from tenancy.stores.sql.background_responses import SqlBackgroundResponses
from tenancy.stores.sql.batches import SqlBatches
from tenancy.stores.sql.cache_purges import SqlCachePurges
from tenancy.stores.sql.conversations import SqlConversations
from tenancy.stores.sql.directory import SqlDirectory
from tenancy.stores.sql.feedback import SqlFeedback
from tenancy.stores.sql.files import SqlFiles
from tenancy.stores.sql.journal import SqlChange, SqlJournal
from tenancy.stores.sql.ledger import SqlUsageStore
from tenancy.stores.sql.members import SqlMemberStore
from tenancy.stores.sql.model_revisions import SqlModelRevisions
from tenancy.stores.sql.opening import StoreAway, StoreError, migrate, open_engine
from tenancy.stores.sql.policy_versions import SqlPolicyVersions
from tenancy.stores.sql.requests import SqlRequests
from tenancy.stores.sql.responses import SqlResponseKeeper, SqlResponses
from tenancy.stores.sql.rollouts import SqlRolloutStore
from tenancy.stores.sql.spend_reader import SqlSpendReader
from tenancy.stores.sql.usage_queries import SqlUsageQueries

__all__ = [
    "SqlAdapterStore",
    "SqlAlerts",
    "SqlBackgroundResponses",
    "SqlBatches",
    "SqlCachePurges",
    "SqlChange",
    "SqlConversations",
    "SqlDirectory",
    "SqlFeedback",
    "SqlFiles",
    "SqlJournal",
    "SqlMemberStore",
    "SqlModelRevisions",
    "SqlPolicyVersions",
    "SqlRequests",
    "SqlResponseKeeper",
    "SqlResponses",
    "SqlRolloutStore",
    "SqlSpendReader",
    "SqlUsageQueries",
    "SqlUsageStore",
    "StoreAway",
    "StoreError",
    "migrate",
    "open_engine",
]
