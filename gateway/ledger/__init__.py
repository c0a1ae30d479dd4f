"""The gateway's end of the ledger: usage written down per request, booked in SQL, and counters reconciled with it."""
