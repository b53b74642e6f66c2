"""The Open Inference Protocol (KServe v2), apart from how its messages travel; HTTP and gRPC share it."""
