"""A manifest as data: its fields, what it refers to, and what this executor refuses by name.

`yaml_source` reads the text, `schema` knows every field, `validate` and `cycles` the references, `pod_rules` what
Kubernetes would refuse; `parse` runs them all and returns a `Manifest`. `library` has the objects of other files.
"""
