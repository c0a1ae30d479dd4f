"""Writes an engine's KV events as JSON lines; runs in an engine's environment, which has pyzmq, alone.

python kv_listener.py ENDPOINT    one line per batch: topic, seq, ts, rank, events
"""

import json
import sys

import msgspec
import zmq


def main(endpoint: str) -> None:
    socket = zmq.Context().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    while True:
        topic, seq, payload = socket.recv_multipart()
        ts, events, rank = msgspec.msgpack.decode(payload)
        line = {"topic": topic.decode(), "seq": int.from_bytes(seq, "big"), "ts": ts, "rank": rank, "events": events}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
