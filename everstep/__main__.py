"""`python -m everstep`: runs the `everstep` command where its script is not on the PATH."""

import sys

from everstep.cli.main import main

sys.exit(main())
