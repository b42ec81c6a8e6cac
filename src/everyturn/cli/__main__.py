"""`python -m everyturn.cli`."""

import sys

from everyturn.cli import main

sys.exit(main())
