"""Policies: what a tenant may do and how its requests are treated. YAML files, checked strictly and compiled into immutable values.

`load.load_policies` reads a folder and returns a `compile.PolicySet`. The package knows pools by name only, never backends or requests.
"""
