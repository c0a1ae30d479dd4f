"""What a tenant may do and how its requests are treated: YAML files, checked strictly and compiled into immutable values."""
