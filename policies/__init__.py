"""What a tenant may do and how its requests are treated: YAML files, checked strictly and compiled into immutable values.

`load.load_policies` is the way in, `compile.PolicySet` what comes out. Knows pools by name only, never backends or requests.
"""
