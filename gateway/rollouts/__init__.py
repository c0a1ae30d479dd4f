"""Rollouts: on the request path, requests are assigned to the variants (arms), copied in shadow phases, and counted by their results; in
the admin process the keeper advances or rolls back each rollout by these counts, and posts a webhook."""
