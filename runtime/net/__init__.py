"""Connections between processes: the gate of every HTTP server, TLS, tokens, and requests that manifests ask for; this
machine's addresses."""
