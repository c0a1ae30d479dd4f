"""Backends that an API server of Kubernetes names: endpoints of Services, pods by labels, the pods of an InferencePool."""
