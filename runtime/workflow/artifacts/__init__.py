"""Artifacts between pods: packed and unpacked (`archives`), kept in a folder (`artifacts`) or a bucket
(`repository`), fetched by http (`remote`) or from git (`git`). `inside` keeps names of a manifest in their folder."""
