"""The version, and the image that carries it on a cluster."""

VERSION = "0.1.0"
IMAGE = f"everstep:{VERSION}"
