"""One worker's view of the fleet, kept current: who belongs to it (`membership`, `roster` and their sources), whether they are
there (`poll_watch`), whether they work (`health_watch`), and what they say of themselves (`signal_watch`, `kv_watch`)."""
