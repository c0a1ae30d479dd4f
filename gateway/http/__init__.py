"""HTTP on the callers' side: the edge, the OpenAI shapes, faults on the wire, and the data port's routes."""
