"""The proxy in a thread of its own, for tests that are not coroutines."""

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from tests.proxy import Proxy


class Wire:
    """`with Wire(url) as wire:`; clients use `wire.url`. Verbs as those of Proxy."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._target = url

    def __enter__(self) -> Self:
        self._thread.start()
        self._proxy = self._run(self._opened())
        self.url: str = self._proxy.url
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.mend)

    def block(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.block)

    def lose_answers(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.lose_answers)

    def delay(self, seconds: float) -> None:
        self._proxy.delay_s = seconds

    async def _opened(self) -> Proxy:
        return await Proxy(self._target).__aenter__()

    async def _closed(self) -> None:
        await self._proxy.__aexit__()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)
