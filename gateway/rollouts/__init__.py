"""Rollouts: on the request path, requests are dealt out to the arms, copied in shadow phases, and what they come to is counted; in the
admin process the keeper does what follows of the counts, and tells."""
