"""Who may call what: tokens, TLS, allowed urls."""
