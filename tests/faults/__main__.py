"""A campaign of faults, see campaign.py (whose functions worker processes import)."""

import sys
from pathlib import Path

sys.path[:0] = [str(path) for path in Path(__file__).resolve().parents[1:3]]  # tests, and the root

from faults import campaign  # noqa: E402

if __name__ == '__main__':
  campaign.main()
