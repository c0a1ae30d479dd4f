"""What Tidegate costs per request and per streamed event, beside nginx, a bare relay and other gateways, in one run."""
