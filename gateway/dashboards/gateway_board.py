"""The dashboard of the gateway's own health: its processes, the ledger of usage, its stores, and what runs beside requests."""

from typing import Final

from gateway.dashboards.panels import Dashboard, Panel, Query, Row, Threshold, quantile

GATEWAY: Final = Dashboard(
    "tidegate-gateway",
    "Tidegate: the gateway itself",
    "Processes, ledger, stores and policies. tidegate status says in words what needs a look.",
    (
        Row(
            "Processes",
            (
                Panel(
                    "Workers",
                    "Places of workers by the state of their process. During a rolling restart a place has two.",
                    (Query("sum by (state) (tidegate_worker_state)", "{{state}}"),),
                    "count",
                    "stacked",
                ),
                Panel(
                    "Unexpected ends",
                    "Ends of workers and of the admin process in the last hour.",
                    (Query("sum by (worker) (increase(tidegate_worker_restarts_total[1h]))", "{{worker}}"),),
                    "count",
                    "bars",
                    (Threshold(1, is_bad=False), Threshold(3)),
                ),
                Panel(
                    "Processor",
                    "Cores in use by each process. At 1 a worker is at its end: more workers, or more gateways.",
                    (Query("sum by (instance, process) (rate(tidegate_process_cpu_seconds_total[$__rate_interval]))", "{{process}}"),),
                    "count",
                    thresholds=(Threshold(0.7, is_bad=False), Threshold(0.9)),
                ),
                Panel(
                    "Memory",
                    "Resident memory of each process, shared pages counted whole.",
                    (Query("tidegate_process_resident_memory_bytes", "{{process}}"),),
                    "bytes",
                ),
                Panel(
                    "Open files",
                    "Share of the file descriptors that a process may have, connections counted.",
                    (Query("tidegate_process_open_fds / tidegate_process_max_fds", "{{process}}"),),
                    "ratio",
                    thresholds=(Threshold(0.7, is_bad=False), Threshold(0.9)),
                    most=1,
                ),
                Panel(
                    "Lag of the event loops",
                    "How late a worker runs a timer, 99th percentile. Above 50 ms every stream of the worker stutters.",
                    (
                        Query(
                            quantile(0.99, "tidegate_loop_lag_seconds", "worker"),
                            "worker {{worker}}",
                        ),
                    ),
                    "seconds",
                    thresholds=(Threshold(0.02, is_bad=False), Threshold(0.05)),
                ),
                Panel(
                    "Tasks",
                    "Coroutines that run: one for each request, and some that always run. Growth without requests is a leak.",
                    (Query("sum(tidegate_tasks)", "tasks"),),
                    "count",
                ),
                Panel(
                    "Refused connections",
                    "Connections of the data port that were closed without an answer, by reason.",
                    (Query("sum by (reason) (rate(tidegate_refused_connections_total[$__rate_interval]))", "{{reason}}"),),
                    "per second",
                    empty_until="a connection is refused",
                ),
                Panel(
                    "Certificates expire in",
                    "Time left of each certificate in use: the data port's (callers), and the client certificates towards engines. Below a "
                    "week and below a day there are alerts.",
                    (Query("min by (use, pool) (tidegate_certificate_expires_timestamp_seconds) - time()", "{{use}} {{pool}}"),),
                    "seconds",
                    "bars",
                    empty_until="the data port or a pool has a certificate (data.tls, pools[].tls)",
                ),
            ),
        ),
        Row(
            "Usage and limits",
            (
                Panel(
                    "Age of unbooked usage",
                    "Of the oldest usage on disk that is not in SQL yet; a second or two is normal.",
                    (Query("max(tidegate_ledger_lag_seconds)", "lag"),),
                    "seconds",
                    thresholds=(Threshold(30, is_bad=False), Threshold(300)),
                ),
                Panel(
                    "Usage that waits for SQL",
                    "Bytes on the ledger's disk.",
                    (Query("sum(tidegate_ledger_waiting_bytes)", "waiting"),),
                    "bytes",
                ),
                Panel(
                    "Usage events",
                    "Events by what became of them. Any dropped one is usage that nobody is billed for.",
                    (
                        Query("sum by (state) (rate(tidegate_ledger_events_total[$__rate_interval]))", "disk: {{state}}"),
                        Query("sum by (state) (rate(tidegate_ledger_booked_total[$__rate_interval]))", "SQL: {{state}}"),
                    ),
                    "per second",
                ),
                Panel(
                    "Database",
                    "Yes while usage can be booked in SQL.",
                    (Query("min(tidegate_ledger_database_up)", "up"),),
                    "yes or no",
                    "value",
                    (Threshold(1, is_bad=False),),
                    most=1,
                ),
                Panel(
                    "Reservations",
                    "How reservations ended: settled with reported usage, by an estimate, answered by the cache, or unused.",
                    (Query("sum by (closing) (rate(tidegate_hold_closings_total[$__rate_interval]))", "{{closing}}"),),
                    "per second",
                    "stacked",
                ),
                Panel(
                    "Commits that wait for the counter store",
                    "Commits of reservations, and open reservations.",
                    (
                        Query("sum(tidegate_limits_undelivered_settlements)", "waiting commits"),
                        Query("sum(tidegate_limits_open_holds)", "open reservations"),
                    ),
                    "count",
                    empty_until="a tenant has a limit",
                ),
                Panel(
                    "Drift of the counters",
                    "Largest share by which a counter had drifted from the ledger at the last comparison.",
                    (Query("max(tidegate_limits_drift_ratio)", "drift"),),
                    "ratio",
                    empty_until="counters were compared with the ledger",
                ),
            ),
        ),
        Row(
            "Beside requests",
            (
                Panel(
                    "Mistakes in policy files",
                    "Above zero, the present files are not in force and the last good ones are.",
                    (Query("max(tidegate_policies_refused)", "mistakes"),),
                    "count",
                    "value",
                    (Threshold(1),),
                ),
                Panel(
                    "Checks of tokens",
                    "Requests with a token of an identity provider, by the result of its verification.",
                    (Query("sum by (issuer, outcome) (rate(tidegate_token_checks_total[$__rate_interval]))", "{{issuer}} {{outcome}}"),),
                    "requests/s",
                    empty_until="a request has a token of an identity provider",
                ),
                Panel(
                    "Lines of batches",
                    "Requests of batches, by what came of them; again is a line that was sent back to wait.",
                    (Query("sum by (outcome) (rate(tidegate_batch_lines_total[$__rate_interval]))", "{{outcome}}"),),
                    "requests/s",
                    empty_until="a batch runs",
                ),
                Panel(
                    "Stored files",
                    "Bytes by the state of the file; every gateway of a database says the same, hence the maximum.",
                    (Query("max by (status) (tidegate_file_bytes)", "{{status}}"),),
                    "bytes",
                    "stacked",
                ),
                Panel(
                    "Prefix index",
                    "Share of the index that is full.",
                    (Query("max(tidegate_index_blocks / tidegate_index_blocks_max)", "full"),),
                    "ratio",
                    most=1,
                ),
                Panel(
                    "Messages between workers",
                    "Bytes that the workers of one host tell each other.",
                    (Query("sum by (direction) (rate(tidegate_siblings_bytes_total[$__rate_interval]))", "{{direction}}"),),
                    "bytes/s",
                    empty_until="a gateway has several workers",
                ),
                Panel(
                    "Traces",
                    "Traced requests by exporter; dropped and failed ones are missing at the receiver.",
                    (Query("sum by (exporter, result) (rate(tidegate_traces_total[$__rate_interval]))", "{{exporter}} {{result}}"),),
                    "requests/s",
                    empty_until="the settings have traces",
                ),
                Panel(
                    "Requests that the log lost",
                    "Finished requests that the request log did not keep, and those that another sink of it did not get.",
                    (
                        Query("sum(rate(tidegate_request_log_lost_total[$__rate_interval]))", "log"),
                        Query(
                            'sum by (sink, result) (rate(tidegate_request_log_sink_total{result!="sent"}[$__rate_interval]))',
                            "{{sink}} {{result}}",
                        ),
                    ),
                    "requests/s",
                    thresholds=(Threshold(1),),
                ),
                Panel(
                    "Lines that the access log dropped",
                    "Because nobody read them fast enough.",
                    (Query("sum(rate(tidegate_access_log_dropped_total[$__rate_interval]))", "dropped"),),
                    "per second",
                    thresholds=(Threshold(1),),
                ),
            ),
        ),
    ),
)
