"""`python -m redis_saver`: the command line, if the script `redis-saver` is not on the PATH."""

import sys

from redis_saver._cli.main import main

sys.exit(main())
