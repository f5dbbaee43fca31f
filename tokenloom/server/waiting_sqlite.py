"""Prefect's SQLite database, with transactions that take the write lock when they begin.

Prefect begins most transactions without the lock. SQLite then refuses a write at once ("database is locked") if another
transaction wrote since this one first read, for example a worker's heartbeat. Prefect's clients try again, but its UI
does not: the form then says "Unknown error while creating flow run".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class _WaitingSqlite(AioSqliteConfiguration):
    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def use_waiting_sqlite() -> None:
    """Let this process's server wait for the lock, if its database is SQLite."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if url and url.startswith("sqlite"):
        set_database_config(_WaitingSqlite(connection_url=url))
