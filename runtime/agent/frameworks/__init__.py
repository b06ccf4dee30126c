"""What the workers of a framework other than torch find in a round: variables, and files beside them.

The story begins in `given.variables`. Each framework is one module of pure functions of a node's seat.
"""
