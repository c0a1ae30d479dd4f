"""What deciding where a request goes costs."""
