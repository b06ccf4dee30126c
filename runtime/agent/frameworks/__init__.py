"""What the workers of a framework other than torch find in a round: variables, and files beside them.

The story begins in `worker_variables.variables`. Each framework is one module of pure functions of a node's seat.
"""
