"""What is drawn of the metrics and what wakes somebody: dashboards and alerts as values, and their forms for Grafana and Prometheus."""
