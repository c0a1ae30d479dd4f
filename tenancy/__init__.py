"""Who may, and how much of it: keys, holds and their ledger, isolation inside engines. Knows no HTTP and no engine."""
