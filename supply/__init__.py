"""What Everstep consists of besides its own code: packages, their licences, bills of materials. Not installed.

`lock` reads constraints.txt, `carried` says which packages an image gets, `licences` what their licences allow
(docs/licences.md), `sbom` lists them for scanners, `release` makes the files of
a release. Imports of Everstep only its version.
"""
