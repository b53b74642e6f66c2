"""The stock handlers. Each module imports torch, and only what it needs besides."""
