"""The gRPC APIs."""
