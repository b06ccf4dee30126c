"""Connections between processes: the guard of every HTTP server, TLS, tokens, and requests that manifests ask for."""
