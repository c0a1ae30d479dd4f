"""All routing policies over the workloads of the routers research (5.3), simulated."""
