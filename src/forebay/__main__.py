"""``python -m forebay`` is ``forebay``."""

import sys

from forebay.cli.main import main

sys.exit(main())
