"""`tidegate.yaml`: its strict models, how it is read, what no single field can see, and the secrets it refers to."""
