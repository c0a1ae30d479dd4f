"""Guardrails: rules over what callers send and what models answer, for whole texts and for streams."""
