"""Where requests wait for room on an engine: in the gateway, so that their order is ours (`tenancy.fairness`) and a caller that leaves,
or would wait in vain, costs no engine anything. docs/overload.md has the whole story."""
