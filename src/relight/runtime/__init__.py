"""What runs inside a worker process: load the archive, loop over batches, send replies."""
