"""What Everstep consists of besides its own code, and what follows from that. No part of what is installed.

`lock` reads constraints.txt, `carried` says which packages an image gets, `licences` what those allow
(docs/licences.md), `sbom` lists them for scanners. Imports no other part of Everstep.
"""
