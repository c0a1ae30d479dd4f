"""The traces of finished requests: metrics, one access-log line each, and the process's own log.

Everything here reads closed `gateway.story.Record`s or plain snapshots; nothing here knows a request in progress, an
HTTP route or a store.
"""
