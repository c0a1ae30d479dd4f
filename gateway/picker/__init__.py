"""Tidegate as the endpoint picker of an inference gateway: a proxy asks it over gRPC (Envoy's ext_proc) where to send a request."""
