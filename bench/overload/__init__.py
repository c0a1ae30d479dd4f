"""Far more requests than engines can serve: what is still served in time, who it is, and what the others hear."""
