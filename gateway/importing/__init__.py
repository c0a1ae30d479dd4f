"""Converts other gateways' configuration to Tidegate's, with a remark for every part not carried over. Pure but for `written`.

`litellm_*` read a LiteLLM proxy's files into a `plan.Plan`; `written` makes files of a Plan.
"""
