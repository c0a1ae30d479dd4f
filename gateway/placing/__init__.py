"""Where routing meets the gateway: the state of each pool in this worker, the routing of one request, the in-flight load of its
attempts, and the explanation of decisions."""
