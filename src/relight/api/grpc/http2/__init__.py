"""HTTP/2 for gRPC; it knows streams, and nothing of calls."""
