"""The processes of one gateway: supervisor, workers, admin; sockets, hot restart, and what the processes tell each other."""
