"""A manifest as data: what it says, what it refers to, and what is refused by name.

`yaml_source` reads the text, `schema` knows every field, `validate` and `cycles` the references, `pod_rules` what
Kubernetes would refuse; `parse` asks them all and gives a `Manifest`. `library` has what stands in other files.
"""
