"""The request queues: requests wait in the gateway for capacity on an engine, so that the gateway decides their order
(`tenancy.fair_queue`), and a caller that leaves, or would wait in vain, costs no engine anything. docs/overload.md describes the whole."""
