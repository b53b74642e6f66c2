"""The frames between the frontend and its workers; both ends import this package, it imports nothing of relight."""
