"""The version, and the cluster image that carries it."""

VERSION = "0.1.0"
IMAGE = f"everstep:{VERSION}"
