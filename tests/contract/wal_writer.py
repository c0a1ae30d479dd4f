"""A process that writes usage and ships it until it is killed: `python wal_writer.py FOLDER URL TRUTH FIRST COUNT EVERY_US`.

TRUTH is a file of COUNT + 2 doubles, mapped, so that it survives the process: the moment (monotonic) each event was appended, and
what this machine makes of a thread that wakes up and syncs a file, as the log's own thread does: when it began the last time, and the
longest it was late.
"""

import asyncio
import mmap
import os
import random
import struct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tenancy.stores.shipper import LedgerShipper
from tenancy.stores.sql import SqlUsageStore, open_engine
from tenancy.stores.wal import Wal
from tests.usage_events import random_event

EVERY_S = 0.02


def watch_the_machine(moments: mmap.mmap, at: int, path: str, stop: threading.Event) -> None:
    """Wake up and sync, again and again; what it takes beyond the pause is the machine's."""
    late = 0.0
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    while not stop.is_set():
        begun = time.monotonic()
        moments[at : at + 16] = struct.pack("2d", begun, late)
        stop.wait(EVERY_S)
        os.pwrite(file, b"x", 0)
        os.fdatasync(file)
        late = max(late, time.monotonic() - begun - EVERY_S)
    os.close(file)


async def main(folder: str, url: str, truth: str, first: int, count: int, every_us: int) -> None:
    engine = open_engine(url)
    wal = Wal(Path(folder), f"{os.getpid()}-{os.urandom(4).hex()}", time.monotonic, segment_s=0.1)
    shipper = LedgerShipper(Path(folder), SqlUsageStore(engine), time.time, every_s=0.02)
    shipping = asyncio.create_task(shipper.run())
    with open(truth, "r+b") as file, mmap.mmap(file.fileno(), 0) as moments:
        stop = threading.Event()
        watching = threading.Thread(target=watch_the_machine, args=(moments, 8 * count, f"{truth}.synced", stop))
        watching.start()
        begun = time.monotonic()
        for n in range(first, count):
            if (ahead := begun + (n - first) * every_us / 1e6 - time.monotonic()) > 0.002:
                await asyncio.sleep(ahead)
            moments[8 * n : 8 * n + 8] = struct.pack("d", time.monotonic())
            wal.append(random_event(n, random.Random(n)))
        wal.close()
        shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)
        await shipper.close()
        stop.set()
        watching.join()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:])))  # type: ignore[arg-type]  # a tuple of known length
