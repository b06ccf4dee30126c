"""Other systems' training jobs as Argo Workflows with Everstep's train step: `convert(text, file) -> Conversion`.

`kinds` has one module for each kind of job. Each reads its fields through `field_reader.Fields`, which lists what
nobody read, and returns a `source.SourceJob`; `workflow` writes it. The story begins in `convert`.
"""

from everstep.convert.convert import Conversion, convert
from everstep.convert.field_reader import ConvertError

__all__ = ["Conversion", "ConvertError", "convert"]
