"""JWT callers: the verifier and the issuers' public keys (JWKS)."""
