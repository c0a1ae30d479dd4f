"""YAML files that people write: values with their positions, mistakes with file, line and key, and strict models made of them."""
