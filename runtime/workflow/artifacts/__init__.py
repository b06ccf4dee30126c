"""Artifacts between pods: packed, unpacked, kept in a folder, in a bucket, or fetched from elsewhere."""
