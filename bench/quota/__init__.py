"""What the counters of limits cost a gateway."""
