"""The heart: models, queues, batching, workers. Knows no HTTP and no gRPC."""
