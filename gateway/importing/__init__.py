"""Turns the configuration of other gateways into ours: what is carried, what is not, and why. Pure but for `written`.

`litellm` reads a LiteLLM proxy's files into a `plan.Plan`; `written` makes files of a Plan.
"""
