"""How a worker process comes to life. The rest of the frontend does not know which launcher ran."""
