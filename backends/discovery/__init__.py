"""Who is in the fleet: today the static list of the configuration, kept honest by polling."""
