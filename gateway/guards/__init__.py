"""Guard rules on the way of a request: what they look at, what they said, and the memory of what was judged before."""
